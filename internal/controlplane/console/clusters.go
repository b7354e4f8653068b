package console

import (
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/queue"
)

func (c *console) clusterPages() {
	c.page("GET /clusters", c.clusters)
	c.page("POST /clusters", c.addCluster)
	c.page("GET /clusters/{ref}", c.cluster)
	c.page("POST /clusters/{ref}/pause", c.pauseCluster(true))
	c.page("POST /clusters/{ref}/resume", c.pauseCluster(false))
	c.page("POST /clusters/{ref}/policy", c.setPolicy)
	c.page("POST /clusters/{ref}/tokens", c.rotateToken)
	c.page("POST /clusters/{ref}/tokens/revoke", c.revokeToken)
}

// clusterView is a cluster with what pages say of it besides.
type clusterView struct {
	store.FleetCluster
	// State is the pulse: PAUSED, or how it is heard of.
	State    string
	Outdated int // agents alive that should be replaced
	agents   []agentView
}

// agentView is an agent, and why it should be replaced, "" if it need not be.
type agentView struct {
	store.FleetAgent
	Outdated string
}

func (c *console) viewCluster(m store.FleetCluster) clusterView {
	v := clusterView{FleetCluster: m, State: m.Connectivity}
	if m.PausedAt != nil {
		v.State = "PAUSED"
	}
	for _, a := range m.Agents {
		view := agentView{FleetAgent: a, Outdated: outdated(a, c.Version)}
		if view.Outdated != "" && a.Alive {
			v.Outdated++
		}
		v.agents = append(v.agents, view)
	}
	return v
}

// AgentViews are the cluster's agents, those that are alive first.
func (v clusterView) AgentViews() []agentView { return v.agents }

// outdated says why an agent should be replaced: it does not know all of the
// contract, or is older than this control plane.
func outdated(a store.FleetAgent, version string) string {
	switch ours, theirs := "v"+strings.TrimPrefix(version, "v"), "v"+strings.TrimPrefix(a.Version, "v"); {
	case a.Contract < queue.Contract:
		return "It knows contract " + strconv.Itoa(a.Contract) + " of " + strconv.Itoa(queue.Contract) + ", and is not given what needs a newer one."
	case semver.IsValid(ours) && semver.IsValid(theirs) && semver.Prerelease(ours) == "" && semver.Compare(theirs, ours) < 0:
		return "This control plane is " + strings.TrimPrefix(ours, "v") + "."
	}
	return ""
}

func (c *console) clusterViews(r *request) ([]clusterView, error) {
	fleet, err := r.store.Fleet(r.Context(), r.org.ID)
	views := make([]clusterView, len(fleet))
	for i, m := range fleet {
		views[i] = c.viewCluster(m)
	}
	return views, err
}

// clustersData is the list of clusters; with what was typed for a new one, and
// what the database said to it.
type clustersData struct {
	Clusters []clusterView
	Org      store.Org
	Name     string
	Refused  *store.RefusedError
}

func (c *console) clusters(w http.ResponseWriter, r *request) error {
	return c.showClusters(w, r, http.StatusOK, clustersData{})
}

func (c *console) showClusters(w http.ResponseWriter, r *request, status int, d clustersData) (err error) {
	if d.Clusters, err = c.clusterViews(r); err != nil {
		return err
	}
	d.Org = r.org
	if r.Header.Get("HX-Request") != "" {
		c.part(w, r, "clusters", "clusters", d)
		return nil
	}
	c.render(w, r, status, "clusters", view{Title: "Clusters", Nav: "clusters", Data: d})
	return nil
}

// addCluster makes a cluster and shows its token, this once.
func (c *console) addCluster(w http.ResponseWriter, r *request) error {
	name := strings.TrimSpace(r.PostFormValue("name"))
	made, err := r.store.CreateCluster(r.Context(), r.org.ID, name)
	if no := refusal(err); no != nil {
		return c.showClusters(w, r, no.Status(), clustersData{Name: name, Refused: no})
	} else if err != nil {
		return err
	}
	return c.showToken(w, r, tokenData{Cluster: name, Token: made.Token, New: true})
}
