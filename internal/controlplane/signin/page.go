package signin

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"path"
	"strings"

	"github.com/tendril-run/tendril/internal/controlplane/person"
)

//go:embed pages/*.html
var pageFiles embed.FS

func loadPages(asset func(string) string) (map[string]*template.Template, error) {
	entries, err := pageFiles.ReadDir("pages")
	if err != nil {
		return nil, err
	}
	pages := map[string]*template.Template{}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "_") {
			continue
		}
		t, err := template.New("").Funcs(template.FuncMap{"asset": asset}).ParseFS(pageFiles, "pages/_layout.html", path.Join("pages", entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("parse the page %s: %w", entry.Name(), err)
		}
		pages[strings.TrimSuffix(entry.Name(), ".html")] = t
	}
	return pages, nil
}

// show answers with a page. It is nobody's to keep, and its address, which may be
// a one-time link, nobody's to be told.
func (s *SignIn) show(w http.ResponseWriter, status int, name string, data any) {
	var b bytes.Buffer
	if err := s.pages[name].ExecuteTemplate(&b, "layout", data); err != nil {
		s.Log.Error("a page cannot be rendered", "page", name, "error", err)
		http.Error(w, "This page cannot be shown. It has been logged.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.WriteHeader(status)
	_, _ = b.WriteTo(w) // the reader is gone: nobody to tell
}

// note is a page that says one thing.
type note struct{ Title, Message, Hint string }

func (s *SignIn) fail(w http.ResponseWriter, r *http.Request, doing string, err error) {
	if r.Context().Err() == nil {
		s.Log.Error("somebody could not "+doing, "error", err)
	}
	s.show(w, http.StatusServiceUnavailable, "note", note{"Sign in", "That did not work just now.", "The database or the issuer of identities does not answer. Try again in a moment; the cause is in the server's log."})
}

// signIn is the page that names the ways to sign in.
func (s *SignIn) signIn(w http.ResponseWriter, r *http.Request) {
	to := local(r.URL.Query().Get("to"))
	if _, ok := person.From(r.Context()); ok {
		http.Redirect(w, r, to, http.StatusSeeOther) //nolint:gosec // local has looked at it
		return
	}
	s.show(w, http.StatusOK, "signin", map[string]any{"Title": "Sign in", "Issuer": s.ways, "Start": startURL(to), "Out": r.URL.Query().Has("out")})
}

// showLink asks for the click that uses a one-time link: a preview of the link, or
// a browser that loads it ahead, must not.
func (s *SignIn) showLink(w http.ResponseWriter, r *http.Request) {
	s.show(w, http.StatusOK, "link", map[string]any{"Title": "Sign in", "Code": r.URL.Query().Get("code"), "To": local(r.URL.Query().Get("to"))})
}

func (s *SignIn) useLink(w http.ResponseWriter, r *http.Request) {
	if !s.mayTry(w, r) {
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 4<<10)
	code, to := r.PostFormValue("code"), local(r.PostFormValue("to"))
	secret := newSecret()
	ok, err := s.records.redeemLink(r.Context(), digest(code), digest(secret), r.UserAgent())
	switch {
	case err != nil:
		s.fail(w, r, "use a one-time link", err)
	case !ok:
		s.show(w, http.StatusForbidden, "note", note{"Sign in", "This link has been used, or is too old.",
			`Each link works once, for 15 minutes. "trellis link" prints another one on the machine where the control plane runs.`})
	default:
		s.began(w, r, secret)
		http.Redirect(w, r, to, http.StatusSeeOther) //nolint:gosec // local has looked at it
	}
}

// signOut ends this browser's session.
func (s *SignIn) signOut(w http.ResponseWriter, r *http.Request) {
	if secret := s.jar.Get(r, sessionCookie); secret != "" {
		if err := s.records.end(r.Context(), digest(secret)); err != nil {
			s.fail(w, r, "sign out", err)
			return
		}
	}
	s.jar.Set(w, r, sessionCookie, "", -1)
	http.Redirect(w, r, "/signin?out", http.StatusSeeOther)
}
