package console

import (
	"net/http"
	"net/url"
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
	c.page("POST /clusters/{ref}/join-tokens", c.newJoinToken)
	c.joinPages()
}

// clusterView is a cluster with what pages compute from it.
type clusterView struct {
	store.FleetCluster
	// State is the pulse: PAUSED, or how it is seen.
	State    string
	Outdated int // agents alive that should be replaced
	agents   []agentView
}

// agentView is an agent, and why it should be replaced.
type agentView struct {
	store.FleetAgent
	OldContract  bool // it does not know all of the contract
	OldVersion   bool // it is older than this control plane
	Newest, Ours string
}

// Outdated reports whether it should be replaced.
func (v agentView) Outdated() bool { return v.OldContract || v.OldVersion }

func newAgentView(a store.FleetAgent, version string) agentView {
	ours, theirs := "v"+strings.TrimPrefix(version, "v"), "v"+strings.TrimPrefix(a.Version, "v")
	return agentView{
		FleetAgent: a, Newest: strconv.Itoa(queue.Contract), Ours: strings.TrimPrefix(version, "v"), OldContract: a.Contract < queue.Contract,
		OldVersion: semver.IsValid(ours) && semver.IsValid(theirs) && semver.Prerelease(ours) == "" && semver.Compare(theirs, ours) < 0,
	}
}

func (c *console) viewCluster(m store.FleetCluster) clusterView {
	v := clusterView{FleetCluster: m, State: m.Connectivity}
	if m.PausedAt != nil {
		v.State = "PAUSED"
	}
	for _, a := range m.Agents {
		view := newAgentView(a, c.Version)
		if view.Outdated() && a.Alive {
			v.Outdated++
		}
		v.agents = append(v.agents, view)
	}
	return v
}

// AgentViews are the cluster's agents, those that are alive first.
func (v clusterView) AgentViews() []agentView { return v.agents }

// quiet ranks how little there is to see of a cluster: what has been lost comes
// first, then where something runs, and last where no agent has ever been.
func (v clusterView) quiet() int {
	switch {
	case v.LastSeenAt == nil:
		return 3
	case v.Connectivity != "ONLINE":
		return 0
	case v.Busy > 0:
		return 1
	}
	return 2
}

func (c *console) clusterViews(r *request) ([]clusterView, error) {
	fleet, err := r.store.Fleet(r.Context(), r.org.ID)
	views := make([]clusterView, len(fleet))
	for i, m := range fleet {
		views[i] = c.viewCluster(m)
	}
	return views, err
}

// clustersData is the list of clusters; with what was typed for a new one or as an agent's code,
// and what the database said to it.
type clustersData struct {
	Clusters  []clusterView
	Org       store.Org
	Name      string
	Refused   *store.RefusedError
	Code      string
	NotJoined *store.RefusedError
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
	c.render(w, r, status, "clusters", view{Nav: "clusters", Data: d})
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

// PausedBy is who paused the cluster; nil if the reader may not know.
func (d clusterData) PausedBy() *actor {
	if d.Pausing == nil {
		return nil
	}
	who := actorOf(d.Pausing.Name, d.Pausing.Actor)
	return &who
}

func (c *console) cluster(w http.ResponseWriter, r *request) error {
	return c.showCluster(w, r, http.StatusOK, clusterData{})
}

// refuseCluster shows the page again with the database's no next to the form that
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
	if atLeast(r.org.Role, "admin") {
		d.Install.MakeToken = clusterPath(m.Name) + "/join-tokens#install"
	}
	c.render(w, r, status, "cluster", view{Nav: "clusters", Data: d})
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
		said := done("cluster-paused", m.Name)
		if !paused {
			said = done("cluster-resumed", m.Name)
		}
		c.redirect(w, r, clusterPath(m.Name), said)
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
	c.redirect(w, r, clusterPath(m.Name), done("policy-saved", m.Name))
	return nil
}

// chart is where the agent's Helm chart is.
const chart = "oci://ghcr.io/tendril-run/charts/tendril"

// installation is how an agent that signs by key is started for a cluster, word by word.
type installation struct {
	Join, Secret, Helm string
	// Plain: what goes there is not encrypted.
	Plain bool
	// MakeToken is where the reader makes a join token; empty: there is one, or the reader may not.
	MakeToken string
}

// newInstallation words how to start an agent for a queue and a cluster. The join token is
// typed in, so that no shell keeps it in its history, nor a process list shows it.
func newInstallation(at, cluster string) installation {
	return installation{
		Plain:  strings.HasPrefix(at, "http://"),
		Join:   "tendril join " + at + " --cluster " + cluster,
		Secret: "kubectl create namespace tendril\n# paste the join token, then Enter and Ctrl-D\nkubectl create secret generic tendril-join --namespace tendril \\\n  --from-file=token=/dev/stdin",
		// Helm takes a name such as 2024 for a number, unless it is told.
		Helm: "helm install tendril " + chart + " \\\n  --namespace tendril \\\n  --set-string cluster=" + cluster +
			" \\\n  --set queue.url=" + at + " \\\n  --set queue.join.tokenSecret=tendril-join",
	}
}

// install tells how to start an agent that reaches this server.
func (c *console) install(r *request, cluster string) installation {
	return newInstallation(c.publicURL(r.Request), cluster)
}

// publicURL is how agents reach this server: what its keeper said, else as this
// request came.
func (c *console) publicURL(r *http.Request) string {
	if c.PublicURL != "" {
		return c.PublicURL
	}
	if c.jar().Secure(r) {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}
