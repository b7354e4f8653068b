package console

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// chart is where the agent's Helm chart is.
const chart = "oci://ghcr.io/tendril-run/charts/tendril"

// tokenData is a token just made. It is nowhere but in the answer to the POST
// that asked for it: not in an address, nor in a cache.
type tokenData struct {
	Cluster string
	Token   string
	New     bool
	// Overlap is how long the tokens before it stay valid.
	Overlap string
	Install installation
}

// tokenView is what is known of a token, and whether it still counts.
type tokenView struct {
	store.ClusterToken
	Valid bool
}

// viewTokens leaves out what ended more than a week ago.
func viewTokens(tokens []store.ClusterToken, now time.Time) (views []tokenView) {
	for _, t := range tokens {
		ended := t.RevokedAt
		if ended == nil && t.ExpiresAt != nil && t.ExpiresAt.Before(now) {
			ended = t.ExpiresAt
		}
		if ended == nil || now.Sub(*ended) < 7*24*time.Hour {
			views = append(views, tokenView{t, ended == nil})
		}
	}
	return views
}

// installation is how an agent is started for a cluster, word by word.
type installation struct {
	URL, Secret, Helm, Run string
	// Plain: what goes there is not encrypted.
	Plain bool
}

// install tells how to start an agent that reaches this server.
func (c *console) install(r *request, cluster string) installation {
	return newInstallation(c.publicURL(r.Request), cluster)
}

// newInstallation words how to start an agent for a queue and a cluster. The token
// comes from a file or from what is typed, so that no shell keeps it in its
// history, nor a process list shows it.
func newInstallation(at, cluster string) installation {
	return installation{
		URL:    at,
		Plain:  strings.HasPrefix(at, "http://"),
		Secret: "umask 077; cat > token   # paste the token, then Enter and Ctrl-D\nkubectl create namespace tendril\nkubectl create secret generic tendril-token --namespace tendril \\\n  --from-file=token=token\nrm token",
		// Helm takes a name such as 2024 for a number, unless it is told.
		Helm: "helm install tendril " + chart + " \\\n  --namespace tendril \\\n  --set-string cluster=" + cluster +
			" \\\n  --set queue.url=" + at + " \\\n  --set queue.tokenSecret=tendril-token",
		Run: "umask 077; cat > token   # paste the token, then Enter and Ctrl-D\nTENDRIL_QUEUE_URL=" + at + " \\\n  TENDRIL_QUEUE_TOKEN_FILE=token \\\n  tendril run",
	}
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

func (c *console) showToken(w http.ResponseWriter, r *request, d tokenData) error {
	d.Install = c.install(r, d.Cluster)
	c.render(w, r, http.StatusOK, "token", view{Title: "Token of " + d.Cluster, Nav: "clusters", Data: d})
	return nil
}

// rotateToken makes another token and shows it, this once.
func (c *console) rotateToken(w http.ResponseWriter, r *request) error {
	m, err := r.store.FindInFleet(r.Context(), r.org.ID, r.PathValue("ref"))
	if err != nil {
		return err
	}
	hours, err := strconv.Atoi(r.PostFormValue("overlap"))
	if err != nil {
		return c.refuseCluster(w, r, "tokens", &store.RefusedError{Code: "PT422", Reason: "bad_overlap", Message: "Say for how many hours the older tokens stay valid, from 0 to 720."})
	}
	overlap := time.Duration(hours) * time.Hour
	made, err := r.store.NewClusterToken(r.Context(), m.ID, overlap)
	if no := refusal(err); no != nil {
		return c.refuseCluster(w, r, "tokens", no)
	} else if err != nil {
		return err
	}
	return c.showToken(w, r, tokenData{Cluster: m.Name, Token: made.Token, Overlap: plural(hours, "hour")})
}

// revokeToken ends a token, or all of a cluster's, at once.
func (c *console) revokeToken(w http.ResponseWriter, r *request) error {
	m, err := r.store.FindInFleet(r.Context(), r.org.ID, r.PathValue("ref"))
	if err != nil {
		return err
	}
	var which *uuid.UUID
	if id, err := uuid.Parse(r.PostFormValue("token")); err == nil {
		which = &id
	} else if r.PostFormValue("token") != "all" {
		return c.refuseCluster(w, r, "tokens", &store.RefusedError{Code: "PT422", Reason: "token_missing", Message: "Choose which token to revoke."})
	}
	ended, err := r.store.RevokeTokens(r.Context(), m.ID, which)
	if no := refusal(err); no != nil {
		return c.refuseCluster(w, r, "tokens", no)
	} else if err != nil {
		return err
	}
	said := flash{Kind: "success", Text: "Revoked " + plural(ended, "token") + " of " + m.Name + ". Agents that use it are refused from now on."}
	if ended == 0 {
		said = flash{Kind: "info", Text: "There was no such token any more: nothing was changed."}
	}
	c.redirect(w, r, clusterPath(m.Name)+"#tokens", said)
	return nil
}
