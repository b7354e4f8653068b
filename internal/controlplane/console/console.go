// Package console is what people see: server-rendered pages, and the assets
// they need, all of it embedded. Pages are html/template, which escapes by
// context; there is no inline script or style anywhere, for the
// Content-Security-Policy forbids both.
//
// It must not decide who may do what (the database does), nor find out who asks
// (package signin).
package console

import (
	"errors"
	"log/slog"
	"net/http"

	"github.com/tendril-run/tendril/internal/controlplane/cookie"
	"github.com/tendril-run/tendril/internal/controlplane/notify"
	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/store"
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
	Log       *slog.Logger
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

// toSignIn sends a page's reader to sign in and back, and tells a part of a page
// (htmx, fetch) that the session has ended.
func (c *console) toSignIn(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || r.Header.Get("HX-Request") != "" {
		// No HX-Refresh: what was typed into the page would be lost by it.
		http.Error(w, "Your session has ended, and nothing was done. Sign in in another tab, then go back to this page's form and send it again: what you typed is still there.", http.StatusUnauthorized)
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
	c.fail(w, r, &store.RefusedError{Code: "PT404", Reason: "page_not_found", Message: "there is no page " + hr.URL.Path})
}

// fail shows what went wrong. What the database refused is in its own words;
// of other faults the reader learns that they are logged.
func (c *console) fail(w http.ResponseWriter, r *request, err error) {
	status, message, hint := http.StatusInternalServerError, "Something went wrong here. It has been logged.", "Try again; if it stays so, tell who runs this control plane."
	if refused, ok := errors.AsType[*store.RefusedError](err); ok && refused.Status() < 500 {
		status, message, hint = refused.Status(), labelled(refused.Message), refused.Hint
	} else if _, ok := errors.AsType[*store.UnreachableError](err); ok {
		status, message, hint = http.StatusServiceUnavailable, "The database does not answer.", "Nothing is lost: what runs goes on. Try again in a moment."
	}
	if status >= 500 && r.Context().Err() == nil {
		c.Log.Error("a page failed", "path", r.URL.Path, "error", err)
	}
	c.render(w, r, status, "error", view{Title: http.StatusText(status), Data: map[string]any{"Status": status, "Message": message, "Hint": hint}})
}
