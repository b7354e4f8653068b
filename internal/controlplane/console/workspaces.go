package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
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
}

// rowsOfPage is how many workspaces, or deeds, a page lists.
const rowsOfPage = 50

// choice is one of a filter's.
type choice struct{ Value, Word string }

var workspaceStates = []choice{
	{"", "Any state"}, {"running", "Running"}, {"waiting", "Waiting"}, {"locked", "Locked"}, {"held", "Held"},
	{"drifted", "Drifted"}, {"failed", "Newest run failed"}, {"idle", "Idle"},
}

// workspacesData is the list of workspaces, and what it was narrowed to.
type workspacesData struct {
	Found    []store.Situation
	Clusters []store.FleetCluster
	States   []choice
	Words    string
	Cluster  string
	State    string
	Narrowed bool
	First    string // where the list begins, if this is not its first page
	Next     string
	Here     string // this very page, to fetch its list again
	Org      store.Org
}

func (c *console) workspaces(w http.ResponseWriter, r *request) error {
	q := r.URL.Query()
	d := workspacesData{Words: strings.TrimSpace(q.Get("q")), Cluster: q.Get("cluster"), State: q.Get("state"), States: workspaceStates, Org: r.org, Here: r.URL.RequestURI()}
	if !slices.ContainsFunc(workspaceStates, func(s choice) bool { return s.Value == d.State }) {
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
			return &store.RefusedError{Code: "PT404", Reason: "cluster_not_found", Message: "there is no such cluster that you may see", Hint: "choose one of the list of clusters"}
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
		d.First = "/workspaces?" + narrowed.Encode()
	}
	if more {
		last := found[len(found)-1]
		narrowed.Set("after-cluster", last.Cluster)
		narrowed.Set("after-name", last.Name)
		d.Next = "/workspaces?" + narrowed.Encode()
	}
	if r.Header.Get("HX-Request") != "" {
		c.part(w, r, "workspaces", "found", d)
		return nil
	}
	c.render(w, r, http.StatusOK, "workspaces", view{Title: "Workspaces", Nav: "workspaces", Data: d})
	return nil
}
