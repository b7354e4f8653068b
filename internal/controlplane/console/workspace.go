package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// workspaceTabs are the parts of a workspace's page.
var workspaceTabs = []choice{
	{"", "Resources"}, {"outputs", "Outputs"}, {"drift", "Drift"}, {"history", "History"}, {"state", "State"}, {"settings", "Settings"},
}

// schedules are how often drift may be looked for, to choose from.
var schedules = []choice{{"0", "Only when asked"}, {"3600", "Every hour"}, {"21600", "Every 6 hours"}, {"86400", "Every day"}, {"604800", "Every week"}}

// mostResources are listed at once: the list is fetched again whenever something
// happens, and any other is found by the search.
const mostResources = 500

// workspaceData is the page of one workspace, of one of its tabs; with what was
// refused, in which form, and what was typed there.
type workspaceData struct {
	W         store.Situation
	Org       store.Org
	Tab       string
	Tabs      []choice
	Outputs   *store.Provision
	Resources []store.Resource
	More      int // resources besides those listed
	Drift     store.Drift
	Every     string // seconds
	Schedules []choice
	History   []store.Provision
	Versions  []store.StateVersion
	LockMine  bool
	Applied   *store.Provision // the newest apply
	Lock      *store.HeldLock
	Words     string
	Form      string
	Refused   *store.RefusedError
	Typed     url.Values
	Here      string
}

func workspacePath(id string) string { return "/workspaces/" + url.PathEscape(id) }

func (c *console) workspace(w http.ResponseWriter, r *request) error {
	return c.showWorkspace(w, r, http.StatusOK, workspaceData{Tab: r.URL.Query().Get("tab")})
}

// refuseWorkspace shows the tab again with the database's no beside the form that
// asked, and what was typed still in it.
func (c *console) refuseWorkspace(w http.ResponseWriter, r *request, tab, form string, no *store.RefusedError) error {
	return c.showWorkspace(w, r, no.Status(), workspaceData{Tab: tab, Form: form, Refused: no, Typed: r.PostForm})
}

func (c *console) showWorkspace(w http.ResponseWriter, r *request, status int, d workspaceData) (err error) {
	ctx := r.Context()
	if d.W, err = r.store.Situation(ctx, r.org.ID, r.PathValue("id")); err != nil {
		return err
	}
	d.Org, d.Tabs, d.Words = r.org, workspaceTabs, strings.TrimSpace(r.URL.Query().Get("q"))
	d.Here = workspacePath(d.W.ID.String()) + "?tab=" + url.QueryEscape(d.Tab) + "&q=" + url.QueryEscape(d.Words)
	d.LockMine = d.W.LockedBy != nil && *d.W.LockedBy == r.person.ID
	if r.Header.Get("HX-Request") != "" && r.URL.Query().Get("part") == "standing" {
		c.part(w, r, "workspace", "standing", d)
		return nil
	}
	switch d.Tab {
	case "outputs":
		var found store.Provision
		if found, err = r.store.LastOutputs(ctx, store.Workspace{ID: d.W.ID, Name: d.W.Name}); err == nil {
			found, err = r.store.Provision(ctx, found.ID.String()) // with its snapshot
			d.Outputs = &found
		} else if refusal(err) != nil {
			err = nil // there are none
		}
	case "drift":
		if d.Drift, err = r.store.Drift(ctx, d.W.ID); err == nil {
			d.setSchedules()
		}
	case "history":
		d.History, err = r.store.History(ctx, d.W.ID, 50)
	case "state":
		d.Versions, err = r.store.StateVersions(ctx, d.W.ID)
	case "settings":
	default:
		d.Tab = ""
		if d.Resources, err = r.store.Resources(ctx, d.W.ID); d.Words != "" {
			d.Resources = slices.DeleteFunc(d.Resources, func(x store.Resource) bool {
				return !strings.Contains(strings.ToLower(x.Address+" "+text(x.ExternalID)+" "+strings.Join(x.IPAddresses, " ")), strings.ToLower(d.Words))
			})
		}
		if d.More = len(d.Resources) - mostResources; d.More > 0 {
			d.Resources = d.Resources[:mostResources]
		}
	}
	if err != nil {
		return err
	}
	if r.Header.Get("HX-Request") != "" {
		c.part(w, r, "workspace", "tab", d)
		return nil
	}
	c.render(w, r, status, "workspace", view{Title: d.W.Name, Nav: "workspaces", Data: d})
	return nil
}

// setSchedules offers the usual schedules, and the one that is set.
func (d *workspaceData) setSchedules() {
	d.Schedules, d.Every = schedules, "0"
	if d.Drift.Every == nil {
		return
	}
	every := time.Duration(*d.Drift.Every * float64(time.Second))
	d.Every = text(int64(every.Seconds()))
	if !slices.ContainsFunc(schedules, func(s choice) bool { return s.Value == d.Every }) {
		d.Schedules = append(slices.Clone(schedules), choice{d.Every, "Every " + duration(every)})
	}
}

// ProviderName is the last part of a provider's address.
func (d workspaceData) ProviderName(provider *string) string {
	name := strings.TrimSuffix(text(provider), `"]`)
	return name[strings.LastIndex(name, "/")+1:]
}

// Managed reports whether states of the workspace are stored in the database.
func (d workspaceData) Managed() bool { return len(d.Versions) > 0 }

// again queues an operation on what was last applied.
func (r *request) again(w store.Situation, operation provision.Operation) (store.Deployed, error) {
	cluster, last, err := r.store.LastApplied(r.Context(), store.Workspace{ID: w.ID, Name: w.Name})
	if err != nil {
		return store.Deployed{}, err
	}
	snapshot, err := provision.Again(last, w.Name, "console")
	if err != nil {
		return store.Deployed{}, &store.RefusedError{Code: "PT409", Reason: "bad_snapshot", Message: "The newest deploy cannot be repeated: " + err.Error(), Hint: "deploy it anew"}
	}
	return r.store.Deploy(r.Context(), cluster, operation, snapshot)
}
