package console

import (
	"net/http"
	"strings"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// chooseOrg remembers which of their organisations a person looks at.
func (c *console) chooseOrg(w http.ResponseWriter, r *request) error {
	for _, o := range r.orgs {
		if o.ID.String() != r.PostFormValue("org") {
			continue
		}
		r.jar.Set(w, r.Request, orgCookie, o.ID.String(), orgCookieLasts)
		// What the page showed is the other organisation's: its list has a
		// counterpart here, it has not.
		to := "/" + strings.SplitN(strings.TrimPrefix(r.PostFormValue("to"), "/"), "/", 2)[0]
		if !inMenu(to) {
			to = "/"
		}
		c.redirect(w, r, to, flash{Kind: "success", Text: "You are looking at " + o.Name + " now."})
		return nil
	}
	return &store.RefusedError{Code: "PT404", Reason: "org_not_found", Message: "there is no such organisation that you belong to"}
}

func inMenu(path string) bool {
	for _, e := range menu {
		if e.Path == path {
			return true
		}
	}
	return false
}
