package console

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

func (c *console) workspacePages() {
	c.page("GET /workspaces", c.workspaces)
	c.page("GET /workspaces/{id}", c.workspace)
	c.page("POST /workspaces/{id}/lock", c.act("settings", "lock", lockWorkspace))
	c.page("POST /workspaces/{id}/unlock", c.act("settings", "lock", unlockWorkspace))
	c.page("POST /workspaces/{id}/release", c.act("settings", "release", releaseWorkspace))
	c.page("POST /workspaces/{id}/rebind", c.act("settings", "rebind", rebindWorkspace))
	c.page("POST /workspaces/{id}/drift", c.act("drift", "schedule", scheduleDrift))
	c.page("POST /workspaces/{id}/check", c.act("drift", "check", checkDrift))
	c.page("POST /workspaces/{id}/destroy", c.destroyWorkspace)
	c.page("POST /workspaces/{id}/power", c.powerWorkspace)
	c.page("POST /workspaces/{id}/reveal", c.revealWorkspace)
}

// rowsOfPage is how many workspaces, or audit events, a page lists.
const rowsOfPage = 50

// workspaceStates are the states that a workspace can be searched by.
var workspaceStates = []string{"running", "waiting", "locked", "held", "drifted", "failed", "idle"}

// workspacesData is the list of workspaces, and what it was narrowed to.
type workspacesData struct {
	Found    []store.Situation
	Clusters []store.FleetCluster
	States   []string
	Words    string
	Cluster  string
	State    string
	Narrowed bool
	Pager    pager
	Here     string // this very page, to fetch its list again
	Org      store.Org
}

// ClusterNames are the clusters that can be chosen.
func (d workspacesData) ClusterNames() (names []string) {
	for _, c := range d.Clusters {
		names = append(names, c.Name)
	}
	return names
}

func (c *console) workspaces(w http.ResponseWriter, r *request) error {
	q := r.URL.Query()
	d := workspacesData{Words: strings.TrimSpace(q.Get("q")), Cluster: q.Get("cluster"), State: q.Get("state"), States: workspaceStates, Org: r.org, Here: r.URL.RequestURI()}
	if !slices.Contains(workspaceStates, d.State) {
		d.State = ""
	}
	var err error
	if d.Clusters, err = r.store.Fleet(r.Context(), r.org.ID); err != nil {
		return err
	}
	f := store.SituationFilter{Words: d.Words, State: d.State, AfterCluster: q.Get("after-cluster"), AfterName: q.Get("after-name")}
	if f.Cluster = uuid.Nil; d.Cluster != "" {
		i := slices.IndexFunc(d.Clusters, func(m store.FleetCluster) bool { return m.Name == d.Cluster })
		if i < 0 {
			return refuse("cluster_not_found", strconv.Quote(d.Cluster))
		}
		f.Cluster = d.Clusters[i].ID
	}
	found, more, err := r.store.Situations(r.Context(), r.org.ID, f, rowsOfPage)
	if err != nil {
		return err
	}
	d.Found, d.Narrowed = found, d.Words != "" || d.Cluster != "" || d.State != ""
	narrowed := url.Values{}
	for name, value := range map[string]string{"q": d.Words, "cluster": d.Cluster, "state": d.State} {
		if value != "" {
			narrowed.Set(name, value)
		}
	}
	if f.AfterName != "" {
		d.Pager.First = "/workspaces?" + narrowed.Encode()
	}
	if more {
		last := found[len(found)-1]
		narrowed.Set("after-cluster", last.Cluster)
		narrowed.Set("after-name", last.Name)
		d.Pager.Next = "/workspaces?" + narrowed.Encode()
	}
	if r.Header.Get("HX-Request") != "" {
		c.part(w, r, "workspaces", "found", d)
		return nil
	}
	c.render(w, r, http.StatusOK, "workspaces", view{Nav: "workspaces", Data: d})
	return nil
}

// workspaceTabs are the parts of a workspace's page.
var workspaceTabs = []string{"", "machines", "outputs", "drift", "history", "state", "settings"}

// schedule is how often drift is checked, in seconds; 0 is by hand only.
type schedule struct {
	Seconds int64
	Chosen  bool
}

// Every is the interval in figures.
func (s schedule) Every() string { return duration(time.Duration(s.Seconds) * time.Second) }

// schedules are those to choose from.
var schedules = []int64{0, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600}

// mostResources are listed at once: the list is fetched again whenever something
// happens, and any other is found by the search.
const mostResources = 500

// workspaceData is the page of one workspace, of one of its tabs; with what was
// refused, in which form, and what was typed there.
type workspaceData struct {
	W         store.Situation
	Org       store.Org
	Tab       string
	Tabs      []string
	Outputs   *store.Provision
	Resources []store.Resource
	More      int // resources that are not listed
	Drift     store.Drift
	Schedules []schedule
	History   []store.Provision
	Versions  []store.StateVersion
	Machines  []machineCard
	LockMine  bool
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

// refuseWorkspace shows the tab again with the database's no next to the form that
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
	case "machines":
		d.Machines, err = r.machineCards(d.W)
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
	c.render(w, r, status, "workspace", view{Nav: "workspaces", Data: d})
	return nil
}

// setSchedules offers the usual schedules, and the one that is set.
func (d *workspaceData) setSchedules() {
	now := int64(0)
	if d.Drift.Every != nil {
		now = int64(*d.Drift.Every)
	}
	offered := schedules
	if !slices.Contains(schedules, now) {
		offered = append(slices.Clone(schedules), now)
	}
	for _, s := range offered {
		d.Schedules = append(d.Schedules, schedule{s, s == now})
	}
}

// ProviderName is the last part of a provider's address.
func (d workspaceData) ProviderName(provider *string) string {
	name := strings.TrimSuffix(text(provider), `"]`)
	return name[strings.LastIndex(name, "/")+1:]
}

// Managed reports whether states of the workspace are stored in the database.
func (d workspaceData) Managed() bool { return len(d.Versions) > 0 }

// deployAgain queues an operation on what was last applied, with what change makes of it.
func deployAgain(r *request, w store.Situation, operation provision.Operation, change func(*provision.Snapshot)) (store.Deployed, error) {
	cluster, last, err := r.store.LastApplied(r.Context(), store.Workspace{ID: w.ID, Name: w.Name})
	if err != nil {
		return store.Deployed{}, err
	}
	snapshot, err := provision.Again(last, w.Name, "the console", r.PostFormValue("requester_key"), change)
	if err != nil {
		return store.Deployed{}, refuse("bad_snapshot", err)
	}
	return r.store.Deploy(r.Context(), cluster, operation, snapshot)
}

// Requester is the key to which the shown outputs are sealed.
func (d workspaceData) Requester() *requester { return requesterIn(d.Outputs.Snapshot) }

// ShownOutputs are those of the newest apply, in order.
func (d workspaceData) ShownOutputs() []output { return outputsOf(d.Outputs) }

// HasSealed reports whether there are any.
func (d workspaceData) HasSealed() bool { return hasSealed(d.Outputs) }

// act is one of a workspace's forms: it does what was asked for and says how it
// went, or returns why not. Its tab and name are where a refusal is shown.
func (c *console) act(tab, form string, do func(*request, store.Situation) (flash, error)) func(http.ResponseWriter, *request) error {
	return func(w http.ResponseWriter, r *request) error {
		found, err := r.store.Situation(r.Context(), r.org.ID, r.PathValue("id"))
		if err != nil {
			return err
		}
		said, err := do(r, found)
		if no := refusal(err); no != nil {
			return c.refuseWorkspace(w, r, tab, form, no)
		} else if err != nil {
			return err
		}
		to := workspacePath(found.ID.String())
		if tab != "" {
			to += "?tab=" + tab
		}
		c.redirect(w, r, to, said)
		return nil
	}
}

func lockWorkspace(r *request, w store.Situation) (flash, error) {
	return done("workspace-locked", w.Name),
		r.store.Lock(r.Context(), w.ID, r.PostFormValue("reason"))
}

func unlockWorkspace(r *request, w store.Situation) (flash, error) {
	return done("workspace-unlocked", w.Name), r.store.Unlock(r.Context(), w.ID, r.PostFormValue("reason"))
}

func releaseWorkspace(r *request, w store.Situation) (flash, error) {
	return done("workspace-released", w.Name), r.store.Release(r.Context(), w.ID, r.PostFormValue("reason"))
}

func rebindWorkspace(r *request, w store.Situation) (flash, error) {
	repo, path := strings.TrimSpace(r.PostFormValue("repo")), strings.TrimSpace(r.PostFormValue("path"))
	return done("workspace-rebound", w.Name, repo), r.store.Rebind(r.Context(), w.ID, repo, path, r.PostFormValue("reason"))
}

func scheduleDrift(r *request, w store.Situation) (flash, error) {
	seconds, err := strconv.Atoi(r.PostFormValue("every"))
	if err != nil {
		return flash{}, refuse("bad_interval")
	}
	every := time.Duration(seconds) * time.Second
	said := done("drift-manual", w.Name)
	if seconds > 0 {
		said = done("drift-every", w.Name, duration(every))
	}
	return said, r.store.WatchDrift(r.Context(), w.ID, every)
}

func checkDrift(r *request, w store.Situation) (flash, error) {
	queued, err := deployAgain(r, w, provision.OperationRefresh, nil)
	return done("drift-check", text(queued.Number)), err
}

// destroyWorkspace queues the end of all that a workspace has, once its name has
// been typed, and shows that provision.
func (c *console) destroyWorkspace(w http.ResponseWriter, r *request) error {
	found, err := r.store.Situation(r.Context(), r.org.ID, r.PathValue("id"))
	if err != nil {
		return err
	}
	if typed := strings.TrimSpace(r.PostFormValue("confirm")); typed != found.Name {
		return c.refuseWorkspace(w, r, "settings", "destroy", refuse("not_confirmed", found.Name))
	}
	queued, err := deployAgain(r, found, provision.OperationDestroy, nil)
	if no := refusal(err); no != nil {
		return c.refuseWorkspace(w, r, "settings", "destroy", no)
	} else if err != nil {
		return err
	}
	c.redirect(w, r, "/provisions/"+strconv.FormatInt(queued.Number, 10), done("workspace-destroy", found.Name))
	return nil
}
