package console

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

func clusterPath(name string) string { return "/clusters/" + url.PathEscape(name) }

// clusterData is the page of one cluster; with what was refused, in which of its
// forms, and what was typed there.
type clusterData struct {
	Cluster clusterView
	Org     store.Org
	Policy  store.Policy
	Tokens  []tokenView
	Install installation
	Form    string // pause, policy or tokens
	Refused *store.RefusedError
	Typed   url.Values
	Now     []store.Situation // where something runs
	Pausing *store.Pausing    // nil: not paused, or not for the reader to know
}

// PausedBy is who has paused the cluster; "" where that is not known.
func (d clusterData) PausedBy() string {
	switch {
	case d.Pausing == nil:
		return ""
	case d.Pausing.Actor == nil:
		return "the platform"
	case d.Pausing.Name == "":
		return short(8, d.Pausing.Actor)
	}
	return d.Pausing.Name
}

func (c *console) cluster(w http.ResponseWriter, r *request) error {
	return c.showCluster(w, r, http.StatusOK, clusterData{})
}

// refuseCluster shows the page again with the database's no beside the form that
// asked, and what was typed still in it.
func (c *console) refuseCluster(w http.ResponseWriter, r *request, form string, no *store.RefusedError) error {
	return c.showCluster(w, r, no.Status(), clusterData{Form: form, Refused: no, Typed: r.PostForm})
}

func (c *console) showCluster(w http.ResponseWriter, r *request, status int, d clusterData) error {
	m, err := r.store.FindInFleet(r.Context(), r.org.ID, r.PathValue("ref"))
	if err != nil {
		return err
	}
	d.Cluster, d.Org = c.viewCluster(m), r.org
	if d.Now, _, err = r.store.Situations(r.Context(), r.org.ID, store.SituationFilter{Cluster: m.ID, State: "running"}, 50); err != nil {
		return err
	}
	if m.PausedAt != nil && atLeast(r.org.Role, "admin") {
		if d.Pausing, err = r.store.PausedBy(r.Context(), r.org.ID, m.ID); err != nil {
			return err
		}
	}
	if r.Header.Get("HX-Request") != "" {
		c.part(w, r, "cluster", "pulse-part", d)
		return nil
	}
	if d.Policy, err = r.store.Policy(r.Context(), m.ID); err != nil {
		return err
	}
	if d.Form == "policy" {
		d.Policy = store.Policy{Approval: d.Typed.Get("approval"), Approvers: d.Typed.Get("approvers"), FourEyes: d.Typed.Get("four_eyes") != "", ApprovalExpiry: d.Typed.Get("approval_expiry")}
	}
	if atLeast(r.org.Role, "admin") {
		tokens, err := r.store.ClusterTokens(r.Context(), m.ID)
		if err != nil {
			return err
		}
		d.Tokens = viewTokens(tokens, m.AsOf)
	}
	d.Install = c.install(r, m.Name)
	c.render(w, r, status, "cluster", view{Title: m.Name, Nav: "clusters", Data: d})
	return nil
}

// pauseCluster pauses a cluster, or lets it go on.
func (c *console) pauseCluster(paused bool) func(http.ResponseWriter, *request) error {
	return func(w http.ResponseWriter, r *request) error {
		m, err := r.store.FindInFleet(r.Context(), r.org.ID, r.PathValue("ref"))
		if err != nil {
			return err
		}
		err = r.store.Pause(r.Context(), m.ID, paused, r.PostFormValue("reason"))
		if no := refusal(err); no != nil {
			return c.refuseCluster(w, r, "pause", no)
		} else if err != nil {
			return err
		}
		said := m.Name + " is paused: its agents begin nothing new. What runs goes on."
		if !paused {
			said = m.Name + " goes on: its agents take what is queued."
		}
		c.redirect(w, r, clusterPath(m.Name), flash{Kind: "success", Text: said})
		return nil
	}
}

// setPolicy sets when plans for a cluster must be approved, and by whom.
func (c *console) setPolicy(w http.ResponseWriter, r *request) error {
	m, err := r.store.FindInFleet(r.Context(), r.org.ID, r.PathValue("ref"))
	if err != nil {
		return err
	}
	approval, approvers, expiry := r.PostFormValue("approval"), r.PostFormValue("approvers"), strings.TrimSpace(r.PostFormValue("approval_expiry"))
	fourEyes := r.PostFormValue("four_eyes") != ""
	_, err = r.store.SetPolicy(r.Context(), m.ID, store.PolicyChange{Approval: &approval, Approvers: &approvers, FourEyes: &fourEyes, ApprovalExpiry: &expiry})
	if no := refusal(err); no != nil {
		return c.refuseCluster(w, r, "policy", no)
	} else if err != nil {
		return err
	}
	c.redirect(w, r, clusterPath(m.Name), flash{Kind: "success", Text: "The approval policy of " + m.Name + " is set. It counts for plans from now on."})
	return nil
}
