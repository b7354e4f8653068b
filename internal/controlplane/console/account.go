package console

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

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
	Tokens, Sessions []store.Credential
	// Made is a new token, which is shown in this answer only.
	Made     *store.APIToken
	MadeName string
	Name     string // of a token that was refused
	Refused  *store.RefusedError
	URL      string
}

// account is the page of one's own tokens and sessions.
func (c *console) account(w http.ResponseWriter, r *request) error {
	return c.showAccount(w, r, http.StatusOK, accountData{})
}

func (c *console) showAccount(w http.ResponseWriter, r *request, status int, d accountData) error {
	all, err := r.store.Credentials(r.Context())
	if err != nil {
		return err
	}
	for _, one := range all {
		if one.Kind == "session" {
			one.Name = browserOf(one.Name)
			d.Sessions = append(d.Sessions, one)
		} else {
			d.Tokens = append(d.Tokens, one)
		}
	}
	d.URL = c.publicURL(r.Request)
	c.render(w, r, status, "account", view{Title: "Account", Nav: "account", Data: d})
	return nil
}

// makeToken makes an API token and shows it, once: there is no redirect, for
// nothing keeps it until the next page.
func (c *console) makeToken(w http.ResponseWriter, r *request) error {
	name := strings.TrimSpace(r.PostForm.Get("name"))
	days, err := strconv.Atoi(r.PostForm.Get("days"))
	if err != nil || days < 1 || days > 366 { // what the form does not offer
		days = 90
	}
	made, err := r.store.CreateAPIToken(r.Context(), name, time.Duration(days)*24*time.Hour)
	if err != nil {
		if refused := refusal(err); refused != nil {
			return c.showAccount(w, r, refused.Status(), accountData{Name: name, Refused: refused})
		}
		return err
	}
	return c.showAccount(w, r, http.StatusOK, accountData{Made: &made, MadeName: name})
}

// revokeCredential ends one of one's own tokens or sessions.
func (c *console) revokeCredential(w http.ResponseWriter, r *request) error {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return &store.RefusedError{Code: "PT404", Reason: "credential_not_found", Message: "there is no such token or session of yours"}
	}
	if _, err := r.store.RevokeCredential(r.Context(), id); err != nil {
		return err
	}
	c.redirect(w, r, "/account", flash{Kind: "success", Text: "It has ended."})
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

// browserOf is what people know a browser by, from what it calls itself.
func browserOf(agent string) string {
	find := func(names [][2]string) string {
		for _, n := range names {
			if strings.Contains(agent, n[0]) {
				return n[1]
			}
		}
		return ""
	}
	// In this order: each pretends to be those after it.
	browser := find([][2]string{{"Edg/", "Edge"}, {"OPR/", "Opera"}, {"Firefox/", "Firefox"}, {"Chrome/", "Chrome"}, {"Safari/", "Safari"}})
	system := find([][2]string{{"Android", "Android"}, {"iPhone", "iPhone"}, {"iPad", "iPad"}, {"Windows", "Windows"}, {"Mac OS X", "macOS"}, {"Linux", "Linux"}})
	switch {
	case browser != "" && system != "":
		return browser + " on " + system
	case browser != "":
		return browser
	case agent == "":
		return "a browser"
	}
	return short(60, agent)
}
