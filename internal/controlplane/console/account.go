package console

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/store"
)

func (c *console) accountPages() {
	c.page("GET /account", c.account)
	c.page("POST /account/tokens", c.makeToken)
	c.page("POST /account/credentials/{id}/revoke", c.revokeCredential)
	c.page("POST /account/signout", c.signOutEverywhere)
}

// accountData is what people see of themselves.
type accountData struct {
	Tokens   []store.Credential
	Sessions []session
	// Made is a new token, which is shown in this answer only.
	Made     *store.APIToken
	MadeName string
	// Typed is what stands in the form of a new token: what was refused, or what a link asks for.
	Typed   url.Values
	Refused *store.RefusedError
	URL     string
}

// account is the page of one's own tokens and sessions.
func (c *console) account(w http.ResponseWriter, r *request) error {
	return c.showAccount(w, r, http.StatusOK, accountData{Typed: r.URL.Query()})
}

func (c *console) showAccount(w http.ResponseWriter, r *request, status int, d accountData) error {
	all, err := r.store.Credentials(r.Context())
	if err != nil {
		return err
	}
	for _, one := range all {
		if one.Kind == "session" {
			d.Sessions = append(d.Sessions, newSession(one))
		} else {
			d.Tokens = append(d.Tokens, one)
		}
	}
	d.URL = c.publicURL(r.Request)
	c.render(w, r, status, "account", view{Nav: "account", Data: d})
	return nil
}

// makeToken makes an API token and shows it, once: there is no redirect, for
// nothing keeps it until the next page.
func (c *console) makeToken(w http.ResponseWriter, r *request) error {
	name := strings.TrimSpace(r.PostForm.Get("name"))
	days, dayErr := strconv.Atoi(r.PostForm.Get("days"))
	if dayErr != nil || days < 1 || days > 366 { // what the form does not offer
		days = 90
	}
	powers := readPowers(r.PostForm)
	var made store.APIToken
	var err error
	if powers == nil && r.PostForm.Get("calls_per_minute") != "" {
		err = refuse("calls_of_whole_token")
	} else {
		made, err = r.store.CreateAPIToken(r.Context(), name, time.Duration(days)*24*time.Hour, powers)
	}
	if err != nil {
		if refused := refusal(err); refused != nil {
			return c.showAccount(w, r, refused.Status(), accountData{Typed: r.PostForm, Refused: refused})
		}
		return err
	}
	return c.showAccount(w, r, http.StatusOK, accountData{Made: &made, MadeName: name})
}

// readPowers reads what a new token may do; nil: all that its person may.
func readPowers(form url.Values) *person.Powers {
	change := form.Get("change")
	if change != "propose" && change != "nothing" {
		return nil
	}
	p := &person.Powers{Change: change, CallsPerMinute: most(form.Get("calls_per_minute"))}
	if change == "nothing" {
		return p
	}
	p.MayApply, p.Workspaces = words(form.Get("may_apply")), words(form.Get("workspaces"))
	if form.Get("destroy") == "" {
		p.Destroy = new(bool)
	}
	p.Approve = form.Get("approve") != ""
	p.RunsPerHour = most(form.Get("runs_per_hour"))
	return p
}

// most is a limit as it was typed: 0 for none. What is no number becomes one that SQL refuses.
func most(text string) int {
	text = strings.TrimSpace(text)
	n, err := strconv.Atoi(text)
	switch {
	case text == "":
		return 0
	case err != nil || n < 1:
		return -1
	}
	return n
}

// words are the patterns of a field, which blanks and commas part.
func words(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
}

// revokeCredential ends one of one's own tokens or sessions.
func (c *console) revokeCredential(w http.ResponseWriter, r *request) error {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return refuse("credential_not_found")
	}
	if _, err := r.store.RevokeCredential(r.Context(), id); err != nil {
		return err
	}
	c.redirect(w, r, "/account", done("credential-revoked"))
	return nil
}

// signOutEverywhere ends all sessions, this one included.
func (c *console) signOutEverywhere(w http.ResponseWriter, r *request) error {
	if _, err := r.store.SignOutEverywhere(r.Context(), r.PostForm.Get("tokens") != ""); err != nil {
		return err
	}
	http.Redirect(w, r.Request, "/signin?out", http.StatusSeeOther)
	return nil
}

// session is a browser that is signed in.
type session struct {
	store.Credential
	Browser, System string // "" where its own words do not tell
}

// newSession finds out what people call the browser, from what it calls itself.
func newSession(c store.Credential) session {
	find := func(names [][2]string) string {
		for _, n := range names {
			if strings.Contains(c.Name, n[0]) {
				return n[1]
			}
		}
		return ""
	}
	// In this order: each pretends to be those after it.
	return session{c,
		find([][2]string{{"Edg/", "Edge"}, {"OPR/", "Opera"}, {"Firefox/", "Firefox"}, {"Chrome/", "Chrome"}, {"Safari/", "Safari"}}),
		find([][2]string{{"Android", "Android"}, {"iPhone", "iPhone"}, {"iPad", "iPad"}, {"Windows", "Windows"}, {"Mac OS X", "macOS"}, {"Linux", "Linux"}})}
}

// tokenData is a token just made. It is nowhere but in the answer to the POST
// that asked for it: not in an address, nor in a cache.
type tokenData struct {
	Cluster string
	Token   string
	New     bool // of a cluster that was just added
	Join    bool // one agent joins with it
	// Overlap is how long the tokens before it stay valid.
	Overlap int // hours
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

func (c *console) showToken(w http.ResponseWriter, r *request, d tokenData) error {
	d.Install = c.install(r, d.Cluster)
	c.render(w, r, http.StatusOK, "token", view{Nav: "clusters", Data: d})
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
		return c.refuseCluster(w, r, "tokens", refuse("bad_overlap"))
	}
	overlap := time.Duration(hours) * time.Hour
	made, err := r.store.NewClusterToken(r.Context(), m.ID, overlap)
	if no := refusal(err); no != nil {
		return c.refuseCluster(w, r, "tokens", no)
	} else if err != nil {
		return err
	}
	return c.showToken(w, r, tokenData{Cluster: m.Name, Token: made.Token, Overlap: hours})
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
		return c.refuseCluster(w, r, "tokens", refuse("token_missing"))
	}
	ended, err := r.store.RevokeTokens(r.Context(), m.ID, which)
	if no := refusal(err); no != nil {
		return c.refuseCluster(w, r, "tokens", no)
	} else if err != nil {
		return err
	}
	said := done("tokens-revoked", m.Name, text(ended))
	if ended == 0 {
		said = noted("tokens-gone")
	}
	c.redirect(w, r, clusterPath(m.Name)+"#tokens", said)
	return nil
}
