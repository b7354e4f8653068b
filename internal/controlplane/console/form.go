package console

import (
	"bytes"
	"html/template"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// maxForm is more than a snapshot may have, as a form sends it.
const maxForm = 3 * provision.MaxSnapshot

// form reads what was asked and posted, before anything else does. What is no
// text the database would only stumble over.
func form(w http.ResponseWriter, r *request) error {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil && r.Method == http.MethodPost { // else of the query, where what is wrong is left out
		return &store.RefusedError{Code: "PT413", Reason: "too_large", Message: "What was sent cannot be read, or is larger than a snapshot may be."}
	}
	garbled := unreadable(r.URL.Path)
	for _, values := range r.Form {
		garbled = garbled || slices.ContainsFunc(values, unreadable)
	}
	if garbled {
		return &store.RefusedError{Code: "PT400", Reason: "no_text", Message: "What was asked for holds bytes that are no text.", Hint: "Look at the address, or at what was pasted."}
	}
	return nil
}

func unreadable(s string) bool { return !utf8.ValidString(s) || strings.Contains(s, "\x00") }

// A page says which organisation it shows: its forms by a field, and what htmx
// sends by a header. For the cookie may have come to name another one since, by
// a page in another tab, and there a cluster or a template may be called the same.
const (
	orgField  = "org_id"
	orgHeader = "Trellis-Org"
)

// ofPage looks at the organisation that the asking page shows. Who has sent its
// form goes on there.
func (r *request) ofPage(w http.ResponseWriter) error {
	said := r.Header.Get(orgHeader)
	if said == "" {
		said = r.PostForm.Get(orgField)
	}
	if said == "" || said == r.org.ID.String() {
		return nil
	}
	for _, o := range r.orgs {
		if o.ID.String() == said {
			r.org = o
			if r.Method == http.MethodPost {
				r.jar.Set(w, r.Request, orgCookie, said, orgCookieLasts)
			}
			return nil
		}
	}
	return &store.RefusedError{Code: "PT404", Reason: "org_not_found", Message: "You do not belong to the organisation of that page any more: nothing was done.", Hint: "Load the page again."}
}

const orgCookieLasts = 365 * 24 * 60 * 60

var postForm = regexp.MustCompile(`<form [^>]*method="post"[^>]*>`)

// ofOrg has each form that posts say which organisation it stands for. What is
// data cannot look like a form here: its < and > are escaped.
func ofOrg(page []byte, org uuid.UUID) []byte {
	field := []byte(`<input type="hidden" name="` + orgField + `" value="` + template.HTMLEscapeString(org.String()) + `">`)
	return postForm.ReplaceAllFunc(page, func(tag []byte) []byte { return bytes.Join([][]byte{tag, field}, nil) })
}
