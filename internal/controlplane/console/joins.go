package console

import (
	"net/http"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/controlplane/store"
)

func (c *console) joinPages() {
	c.page("POST /clusters/join", c.join)
	c.page("POST /clusters/join/yes", c.letJoin)
	c.page("POST /clusters/join/no", c.refuseJoin)
}

// joinData is an agent that waits to join, for an admin to compare and decide.
type joinData struct {
	Agent    store.JoinRequest
	Code     string
	Words    string // the key's fingerprint
	Clusters []clusterView
	Refused  *store.RefusedError
}

// findJoin finds the agent that waits with the code that was typed; nil where the answer, that
// there is none, is written.
func (c *console) findJoin(w http.ResponseWriter, r *request) (*joinData, error) {
	code := strings.TrimSpace(r.PostFormValue("code"))
	agent, err := r.store.JoinRequest(r.Context(), code)
	no := refusal(err)
	if no == nil && err == nil && agent == nil {
		no = refuse("no_such_code")
	}
	if no != nil {
		return nil, c.showClusters(w, r, no.Status(), clustersData{Code: code, NotJoined: no})
	}
	if err != nil {
		return nil, err
	}
	words, err := agentkey.WordsOfText(agent.Fingerprint)
	if err != nil {
		return nil, err
	}
	d := &joinData{Agent: *agent, Code: code, Words: words}
	d.Clusters, err = c.clusterViews(r)
	return d, err
}

// join shows which agent waits with a code.
func (c *console) join(w http.ResponseWriter, r *request) error {
	d, err := c.findJoin(w, r)
	if d == nil || err != nil {
		return err
	}
	c.render(w, r, http.StatusOK, "join", view{Nav: "clusters", Data: d})
	return nil
}

// newJoinToken makes a token with which one agent joins within a day, and shows it, this once.
func (c *console) newJoinToken(w http.ResponseWriter, r *request) error {
	m, err := r.store.FindInFleet(r.Context(), r.org.ID, r.PathValue("ref"))
	if err != nil {
		return err
	}
	made, err := r.store.NewJoinToken(r.Context(), m.ID, "", 24*time.Hour)
	if no := refusal(err); no != nil {
		return c.refuseCluster(w, r, "join-tokens", no)
	} else if err != nil {
		return err
	}
	return c.showToken(w, r, tokenData{Cluster: m.Name, Token: made.Token, Join: true})
}

// letJoin lets it join the cluster that was chosen, if its key is the one that was shown.
func (c *console) letJoin(w http.ResponseWriter, r *request) error {
	d, err := c.findJoin(w, r)
	if d == nil || err != nil {
		return err
	}
	m, err := r.store.FindInFleet(r.Context(), r.org.ID, r.PostFormValue("cluster"))
	if err == nil {
		_, err = r.store.ApproveJoin(r.Context(), d.Code, m.ID, r.PostFormValue("fingerprint"))
	}
	if d.Refused = refusal(err); d.Refused != nil {
		c.render(w, r, d.Refused.Status(), "join", view{Nav: "clusters", Data: d})
		return nil //nolint:nilerr // the page shows it
	}
	if err != nil {
		return err
	}
	c.redirect(w, r, clusterPath(m.Name), done("agent-joined", d.Agent.Name, m.Name))
	return nil
}

// refuseJoin turns it away.
func (c *console) refuseJoin(w http.ResponseWriter, r *request) error {
	d, err := c.findJoin(w, r)
	if d == nil || err != nil {
		return err
	}
	if _, err := r.store.RefuseJoin(r.Context(), d.Code); err != nil {
		return err
	}
	c.redirect(w, r, "/clusters", done("agent-refused", d.Agent.Name))
	return nil
}
