// Package console is what people see: server-rendered pages, and the assets
// they need, all of it embedded. Pages are html/template, which escapes by
// context; there is no inline script or style anywhere, for the
// Content-Security-Policy forbids both.
//
// It must not decide who may do what (the database does), nor find out who asks
// (package signin).
//
// # Pages and components
//
// A page has its template in pages/ and a test of its name; its handlers and their data
// stand with those of its subject: clusters.go has the list and the page of one. What
// several pages show is a component: a small typed value without words, in
// components.go or, for what a run plans and leaves, in output.go; and
// components/NAME.html, the markup and the words. A component that encloses others ends
// with end-NAME:
//
//	{{template "table" (table "Agents" "Agent" "State")}} rows {{template "end-table"}}
//
// testdata/components.html shows each component in all its states. Words are in
// templates; only refusal.go has tables of them.
//
// # Rules for pages
//
//   - They work without script: a form is answered with 303, a refused one with
//     its page, the error and what was typed. Script makes better what is there.
//   - A button that a role cannot use is absent or says who can. The database
//     decides again.
//   - A state has a word and an icon with its colour.
//   - Other people's text stands in <bdi> and goes through visible: it may run the
//     other way, or hide what it says.
//   - A new token is in the answer to the POST alone: an address, a cookie or a
//     cache would keep it.
//   - Live parts (data-live) fetch themselves when an event arrives, every 10 s
//     where there is no stream. Forms stand outside of them.
//   - The log is drawn in the browser from rows of the API, only the lines in
//     sight. Of escape sequences only colours and looks count.
//   - A secret typed into the deploy form is sealed before the review; a draft
//     and the JSON never hold it.
package console

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/cookie"
	"github.com/tendril-run/tendril/internal/controlplane/notify"
	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// Config is what the console needs of the process it runs in.
type Config struct {
	Database *store.Database
	Notifier *notify.Notifier
	Version  string
	// PublicURL is how agents and people reach this server, without a slash at
	// its end; "" where nobody said.
	PublicURL string
	LocalHost string // see cookie.Jar
	// TraceURL is where people see a run's trace, with {trace_id} in place of its id; "" for
	// nowhere.
	TraceURL string
	Log      *slog.Logger
}

// console is what pages share.
type console struct {
	Config
	pages *pages
	mux   *http.ServeMux
}

// New returns the handler of all pages and of /assets/.
func New(c Config) (http.Handler, error) {
	p, err := loadPages()
	if err != nil {
		return nil, err
	}
	app := &console{Config: c, pages: p, mux: http.NewServeMux()}
	app.mux.Handle("GET /assets/", assetHandler())
	app.page("POST /org", app.chooseOrg)
	app.page("GET /{$}", app.home)
	app.deployPages()
	app.templatePages()
	app.provisionPages()
	app.clusterPages()
	app.workspacePages()
	app.machinePages()
	app.plannedPages()
	app.poolPages()
	app.page("GET /audit", app.audit)
	app.memberPages()
	app.invitationPages()
	app.accountPages()
	app.notificationPages()
	app.mux.HandleFunc("/", app.notFound)
	return app.mux, nil
}

// jar is how cookies are set and read.
func (c *console) jar() cookie.Jar { return cookie.Jar{PublicURL: c.PublicURL, LocalHost: c.LocalHost} }

// request is one request of somebody who is signed in, in one organisation.
type request struct {
	*http.Request
	person person.Person
	store  *store.Store
	orgs   []store.Org
	org    store.Org
	jar    cookie.Jar
}

// page mounts a handler for people who are signed in; others are asked to do
// that first. Its error becomes an error page.
func (c *console) page(pattern string, handle func(http.ResponseWriter, *request) error) {
	c.mux.HandleFunc(pattern, func(w http.ResponseWriter, hr *http.Request) {
		p, ok := person.From(hr.Context())
		if !ok {
			c.toSignIn(w, hr)
			return
		}
		r := &request{Request: hr, person: p, store: c.Database.As(p.ID), jar: c.jar()}
		err := form(w, r)
		if err == nil {
			err = r.findOrg()
		}
		if err == nil {
			err = r.ofPage(w)
		}
		if err == nil {
			err = handle(w, r)
		}
		if err != nil {
			c.fail(w, r, err)
		}
	})
}

// orgCookie remembers which of their organisations a person looks at.
const orgCookie = "trellis_org"

// findOrg finds the organisation that the cookie names, else the first.
func (r *request) findOrg() (err error) {
	if r.orgs, err = r.store.Orgs(r.Context()); err != nil || len(r.orgs) == 0 {
		return err
	}
	r.org = r.orgs[0]
	chosen := r.jar.Get(r.Request, orgCookie)
	for _, o := range r.orgs {
		if o.ID.String() == chosen {
			r.org = o
		}
	}
	return nil
}

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
	return refuse("org_not_found")
}

// toSignIn sends a page's reader to sign in and back, and tells a part of a page
// (htmx, fetch) that the session has ended.
func (c *console) toSignIn(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || r.Header.Get("HX-Request") != "" {
		// No HX-Refresh: what was typed into the page would be lost by it.
		http.Error(w, "Your session has ended. Nothing was done. Sign in in another tab, then go back to this page's form and send it again: what you typed is still there.", http.StatusUnauthorized)
		return
	}
	http.Redirect(w, r, "/signin?to="+escapeQuery(r.URL.RequestURI()), http.StatusSeeOther) //nolint:gosec // a path of this server's own
}

func (c *console) notFound(w http.ResponseWriter, hr *http.Request) {
	p, ok := person.From(hr.Context())
	if !ok {
		c.toSignIn(w, hr)
		return
	}
	r := &request{Request: hr, person: p, store: c.Database.As(p.ID), jar: c.jar()}
	_ = r.findOrg() // the page says nothing of it
	c.fail(w, r, refuse("page_not_found", hr.URL.Path))
}

// errorData is the page of an error.
type errorData struct {
	Status  int
	Refused *store.RefusedError // nil: of ours, which is logged
}

// StatusText names the status.
func (d errorData) StatusText() string { return http.StatusText(d.Status) }

// fail shows what went wrong. What the database refused is in its own words;
// of other faults the reader learns that they are logged.
func (c *console) fail(w http.ResponseWriter, r *request, err error) {
	d := errorData{Status: http.StatusInternalServerError}
	if d.Refused = refusal(err); d.Refused != nil {
		d.Status = d.Refused.Status()
	} else if _, ok := errors.AsType[*store.UnreachableError](err); ok {
		d.Status = http.StatusServiceUnavailable
	}
	if d.Status >= 500 && r.Context().Err() == nil {
		c.Log.Error("a page failed", "path", r.URL.Path, "error", err)
	}
	c.render(w, r, d.Status, "error", view{Data: d})
}

//go:embed pages/*.html components/*.html
var pageFiles embed.FS

// pages are the templates, each page's with the layout and the components.
// components/NAME.html has one component, pages/_*.html the layout and what two
// pages share; every other file is a page that defines "main".
type pages struct{ byName map[string]*template.Template }

func loadPages() (*pages, error) {
	base, err := template.New("base").Funcs(functions()).ParseFS(pageFiles, "components/*.html", "pages/_*.html")
	if err != nil {
		return nil, fmt.Errorf("parse the components: %w", err)
	}
	files, err := fs.Glob(pageFiles, "pages/[a-z]*.html")
	if err != nil {
		return nil, err
	}
	p := &pages{byName: map[string]*template.Template{}}
	for _, file := range files {
		t, err := base.Clone()
		if err == nil {
			t, err = t.ParseFS(pageFiles, file)
		}
		if err != nil {
			return nil, fmt.Errorf("parse the page %s: %w", file, err)
		}
		p.byName[strings.TrimSuffix(path.Base(file), ".html")] = t
	}
	return p, nil
}

// view is what every page is given; Data is its own.
type view struct {
	// Nav is the entry of the menu that the page belongs to, such as "home".
	Nav  string
	Data any

	// Set by render.
	Person  person.Person
	Org     store.Org
	Orgs    []store.Org
	Version string
	Path    string
	Flash   *flash
}

// Me reports whether a member is who looks at the page.
func (v view) Me(m store.Member) bool { return m.UserID == v.Person.ID }

// render answers with a page.
func (c *console) render(w http.ResponseWriter, r *request, status int, name string, v view) {
	v.Person, v.Org, v.Orgs, v.Version, v.Path = r.person, r.org, r.orgs, c.Version, r.URL.Path
	v.Flash = takeFlash(w, r)
	c.execute(w, r, status, name, "layout", v)
}

// part answers with one template of a page, for htmx to put in its place.
func (c *console) part(w http.ResponseWriter, r *request, name, part string, data any) {
	c.execute(w, r, http.StatusOK, name, part, data)
}

// execute writes nothing until it has all: half a page is worse than an error.
func (c *console) execute(w http.ResponseWriter, r *request, status int, name, part string, data any) {
	var b bytes.Buffer
	if err := c.pages.byName[name].ExecuteTemplate(&b, part, data); err != nil {
		c.Log.Error("a page cannot be rendered", "page", name, "path", r.URL.Path, "error", err)
		http.Error(w, "This page cannot be shown. It has been logged.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	page := b.Bytes()
	if len(r.orgs) > 1 {
		page = ofOrg(page, r.org.ID)
	}
	_, _ = w.Write(page) // the reader is gone: nobody to tell
}

func escapeQuery(text string) string { return url.QueryEscape(text) }

// maxForm is more than a snapshot may have, as a form sends it.
const maxForm = 3 * provision.MaxSnapshot

// form reads what was asked and posted, before anything else does. What is no
// text the database would only stumble over.
func form(w http.ResponseWriter, r *request) error {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil && r.Method == http.MethodPost { // else of the query, where what is wrong is left out
		return refuse("too_large")
	}
	garbled := unreadable(r.URL.Path)
	for _, values := range r.Form {
		garbled = garbled || slices.ContainsFunc(values, unreadable)
	}
	if garbled {
		return refuse("no_text")
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

const orgCookieLasts = 365 * 24 * 60 * 60

var postForm = regexp.MustCompile(`<form [^>]*method="post"[^>]*>`)

// ofOrg has each form that posts say which organisation it stands for. What is
// data cannot look like a form here: its < and > are escaped.
func ofOrg(page []byte, org uuid.UUID) []byte {
	field := []byte(`<input type="hidden" name="` + orgField + `" value="` + template.HTMLEscapeString(org.String()) + `">`)
	return postForm.ReplaceAllFunc(page, func(tag []byte) []byte { return bytes.Join([][]byte{tag, field}, nil) })
}
