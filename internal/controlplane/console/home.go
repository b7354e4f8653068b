package console

import (
	"net/http"
	"slices"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// homeData is what runs, what waits and why, what failed lately, and how the
// clusters do.
type homeData struct {
	store.Overview
	Clusters []clusterView
	// Shown are those that the page lists: all, or where something goes on.
	Shown []clusterView
	Org   store.Org
	// FirstSteps: something is still to be done before anything can run.
	FirstSteps               bool
	HasAgent, HasTemplate    bool
	HasCluster, HasWorkspace bool
	Slots, Busy, Online      int
	Invitations              int // that wait for the person's answer
}

// mostClusters are listed; the page is fetched again whenever something happens.
const mostClusters = 30

func (c *console) home(w http.ResponseWriter, r *request) error {
	d, err := c.readHome(r)
	if err != nil {
		return err
	}
	if r.Header.Get("HX-Request") != "" {
		c.part(w, r, "home", "now", d)
		return nil
	}
	invited, err := r.store.OwnInvitations(r.Context())
	if err != nil {
		return err
	}
	d.Invitations = len(invited)
	c.render(w, r, http.StatusOK, "home", view{Nav: "home", Data: d})
	return nil
}

func (c *console) readHome(r *request) (*homeData, error) {
	d := &homeData{Org: r.org}
	if len(r.orgs) == 0 {
		return d, nil
	}
	var err error
	if d.Overview, err = r.store.Overview(r.Context(), r.org.ID); err != nil {
		return nil, err
	}
	if d.Clusters, err = c.clusterViews(r); err != nil {
		return nil, err
	}
	for _, m := range d.Clusters {
		d.Slots, d.Busy = d.Slots+m.Slots, d.Busy+m.Busy
		if m.Connectivity == "ONLINE" {
			d.Online++
		}
		d.HasAgent = d.HasAgent || len(m.Agents) > 0
	}
	d.Shown = d.Clusters
	if len(d.Clusters) > mostClusters {
		d.Shown = slices.Clone(d.Clusters)
		slices.SortStableFunc(d.Shown, func(a, b clusterView) int { return a.quiet() - b.quiet() })
		d.Shown = d.Shown[:mostClusters]
	}
	d.HasCluster, d.HasTemplate, d.HasWorkspace = len(d.Clusters) > 0, d.Counts.Templates > 0, d.Counts.Workspaces > 0
	d.FirstSteps = !d.HasCluster || !d.HasWorkspace
	return d, nil
}
