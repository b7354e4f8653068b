// Package signin identifies the person behind a request, by a browser's cookie or by
// a program's Bearer token. It serves the pages on which people sign in and out, and
// confirm the sign-in of the CLI.
//
// It compares digests with those in schema tendril and stores nothing itself. It must
// not know what a person may do, nor what is served to them.
//
// A one-time link is used up by a click on its page, because a preview must not
// use it up. An API token makes no other and lets no CLI in, or a leaked one would
// outlive its revocation. A Bearer that is nobody's does not fall back to the
// cookie. An e-mail address counts only where the issuer says that it is verified,
// and an invitation makes nobody a member: the person accepts it.
package signin

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"github.com/tendril-run/tendril/internal/controlplane/cookie"
	"github.com/tendril-run/tendril/internal/controlplane/peer"
	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/printable"
)

// Config is what signing in needs of the process it runs in.
type Config struct {
	Database *store.Database
	// PublicURL is how people reach this server, without a slash at its end; ""
	// where nobody said: then as each request came.
	PublicURL string
	LocalHost string // see cookie.Jar
	// Asset is the URL of a file that pages use.
	Asset func(name string) string
	// TrustedProxies are believed what they say in X-Forwarded-For.
	TrustedProxies []netip.Prefix
	Issuers
	// LookEvery is how soon a request that goes on ends after the session or token
	// that let it in; 0: DefaultLookEvery.
	LookEvery time.Duration
	// Refused is called for a request of an API token that was one too many in its minute, with the
	// organisation that it names; nil: nothing is.
	Refused func(by person.Person, org string)
	Log     *slog.Logger
}

// Issuers say who people are; at most one of them is set.
type Issuers struct {
	OIDC     OIDC
	Supabase Supabase
	// FirstAdmin is the e-mail address of who becomes admin where no admin has
	// ever signed in; "": nobody does.
	FirstAdmin string
}

// SignIn answers who asks. It is safe for concurrent use. Whoever made it calls Run,
// and Close.
type SignIn struct {
	Config
	records records
	jar     cookie.Jar
	pages   map[string]*template.Template
	mux     *http.ServeMux
	rates   *peer.Rates
	calls   callers

	issuer   issuer // nil: there is none
	ways     string // what browsers sign in by: the issuer's name, or ""
	client   *http.Client
	jwts     jwts
	verifies *peer.Rates
	refusals *rate.Limiter // of JWTs, for the log
	opened   opened
}

// New returns what finds out who asks.
func New(c Config) (*SignIn, error) {
	pages, err := loadPages(c.Asset)
	if err != nil {
		return nil, err
	}
	s := &SignIn{Config: c, records: records{c.Database}, jar: cookie.Jar{PublicURL: c.PublicURL, LocalHost: c.LocalHost}, pages: pages, mux: http.NewServeMux(), client: newClient(), jwts: newJWTs(),
		rates: peer.NewRates(triesPerSecond, triesAtOnce), calls: newCallers(), verifies: peer.NewRates(verifiesPerSecond, verifiesAtOnce), refusals: rate.NewLimiter(1, 5)}
	browsers := false
	switch {
	case c.OIDC.Issuer != "":
		s.issuer, browsers = &openID{OIDC: c.OIDC, client: s.client}, c.OIDC.ClientID != ""
	case c.Supabase.URL != "":
		s.issuer, browsers = newGoTrue(c.Supabase, s.client), c.Supabase.Provider != ""
	}
	if browsers {
		s.ways = s.issuer.name()
		s.mux.HandleFunc("GET /signin/start", s.start)
		s.mux.HandleFunc("GET /signin/callback", s.returned)
	}
	s.mux.HandleFunc("GET /signin", s.signIn)
	s.mux.HandleFunc("GET /signin/link", s.showLink)
	s.mux.HandleFunc("POST /signin/link", s.useLink)
	s.mux.HandleFunc("POST /signout", s.signOut)
	s.mux.HandleFunc("GET /cli/authorize", s.authorizeCLI)
	s.mux.HandleFunc("POST /cli/authorize", s.answerCLI)
	s.oauth()
	s.mux.HandleFunc("POST /api/v1/cli/token", s.exchange)
	s.mux.HandleFunc("DELETE /api/v1/cli/token", s.endToken)
	return s, nil
}

// Mount adds the pages and operations of this package to a server's.
func (s *SignIn) Mount(mux *http.ServeMux) {
	for _, path := range []string{"/signin", "/signin/", "/signout", "/cli/authorize", "/oauth/", authorizationServer, "POST /api/v1/cli/token", "DELETE /api/v1/cli/token"} {
		mux.Handle(path, s.mux)
	}
}

// tokenPrefix is how API tokens begin.
const tokenPrefix = "trt_"

// Middleware puts who asks into each request's context. A Bearer counts before a
// cookie, and one that is nobody's does not fall back to it. Assets are for
// everybody, and cost no question.
func (s *SignIn) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/assets/") {
			next.ServeHTTP(w, r)
			return
		}
		if p, known := person.From(r.Context()); known { // asked by this process itself, for that person
			p.Tool = tool(r)
			next.ServeHTTP(w, r.WithContext(person.With(r.Context(), p)))
			return
		}
		f, err := s.find(r)
		if err != nil && r.Context().Err() == nil {
			s.unknown(w, r, err)
			return
		}
		if f.ok && !s.isFor(f.person, r) {
			f = found{}
		}
		if f.ok {
			if wait, ok := s.calls.allow(f.person); !ok {
				if s.Refused != nil {
					s.Refused(f.person, r.URL.Query().Get("org"))
				}
				w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(max(1, wait.Seconds())))))
				problem.Refuse(w, r, http.StatusTooManyRequests, "too_many_calls", "This API token has asked as often within a minute as it may. Try again in a moment.")
				return
			}
			f.person.Tool = tool(r)
			ctx, done := person.With(r.Context(), f.person), func() {}
			switch {
			case f.credential != uuid.Nil:
				ctx, done = s.opened.add(ctx, f.credential)
			case !f.until.IsZero():
				ctx, done = context.WithDeadline(ctx, f.until)
			}
			defer done()
			r = r.WithContext(ctx)
		}
		next.ServeHTTP(w, r)
	})
}

// ToolHeader is how a request says that a tool for language models makes it, with the name and
// version of the tool's client. The database then lets it propose and no more, where its token has
// no powers of its own.
const ToolHeader = "Tendril-Tool"

// maxTool is how many bytes of what a client calls itself are kept.
const maxTool = 200

// tool is what a request says of the tool that makes it; "": none does.
func tool(r *http.Request) string {
	if _, there := r.Header[ToolHeader]; !there {
		return ""
	}
	name := strings.ToValidUTF8(printable.Text(r.Header.Get(ToolHeader)), "")
	if len(name) > maxTool {
		name = strings.ToValidUTF8(name[:maxTool], "")
	}
	return cmp.Or(name, "unnamed")
}

// isFor reports whether what somebody shows is for what they ask for: an API token may be for one
// resource alone (RFC 8707).
func (s *SignIn) isFor(p person.Person, r *http.Request) bool {
	if p.Audience == "" {
		return true
	}
	u, err := url.Parse(p.Audience)
	return err == nil && (r.URL.Path == u.Path || strings.HasPrefix(r.URL.Path, u.Path+"/"))
}

// callers bounds how often an API token is answered, where its powers say so.
type callers struct {
	known *lru.Cache[uuid.UUID, *rate.Limiter]
}

// maxCallers is how many tokens are remembered. A forgotten token starts with a full allowance, so
// forgetting never refuses a call.
const maxCallers = 1 << 12

func newCallers() callers {
	known, _ := lru.New[uuid.UUID, *rate.Limiter](maxCallers) // fails for no size only
	return callers{known}
}

// allow reports whether the request may go on, else how long to wait.
func (c callers) allow(p person.Person) (time.Duration, bool) {
	if p.Powers == nil || p.Powers.CallsPerMinute == 0 {
		return 0, true
	}
	perSecond := rate.Limit(p.Powers.CallsPerMinute) / 60
	limiter, ok := c.known.Get(p.TokenID)
	if !ok {
		limiter = rate.NewLimiter(perSecond, p.Powers.CallsPerMinute)
		if before, there, _ := c.known.PeekOrAdd(p.TokenID, limiter); there {
			limiter = before
		}
	}
	return time.Duration(float64(time.Second) / float64(perSecond)), limiter.Allow()
}

// found is who asks.
type found struct {
	person person.Person
	ok     bool // false: nobody who is known
	// credential is the session or API token that says so. A JWT has none, for it
	// is not ours to end, but until when it counts.
	credential uuid.UUID
	until      time.Time
}

// unknown answers a request of which it cannot be said now who makes it.
func (s *SignIn) unknown(w http.ResponseWriter, r *http.Request, err error) {
	w.Header().Set("Retry-After", "2")
	if errors.Is(err, errTooMany) {
		problem.Refuse(w, r, http.StatusTooManyRequests, "too_many_tries", "Too many new JWTs from your address. Try again in a moment.")
		return
	}
	s.Log.Error("who asks cannot be found out", "error", err)
	problem.Refuse(w, r, http.StatusServiceUnavailable, "unavailable",
		"It cannot be found out who you are, for the database or the issuer of identities does not answer. Try again in a moment.")
}

// find returns who asks.
func (s *SignIn) find(r *http.Request) (found, error) {
	if header := r.Header.Get("Authorization"); header != "" {
		scheme, token, _ := strings.Cut(header, " ")
		token = strings.TrimSpace(token)
		switch {
		case !strings.EqualFold(scheme, "Bearer"):
			return found{}, nil
		case !strings.HasPrefix(token, tokenPrefix):
			return s.known(r, token)
		}
		return s.records.find(r.Context(), apiToken, token)
	}
	if secret := s.jar.Get(r, sessionCookie); secret != "" {
		return s.records.find(r.Context(), session, secret)
	}
	return found{}, nil
}

// digest is what is kept of a secret.
func digest(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// begin gives a browser a session of its own, and ends the one that it showed
// before: who has put that there may know it.
func (s *SignIn) begin(w http.ResponseWriter, r *http.Request, user uuid.UUID) error {
	secret := newSecret()
	if err := s.records.open(r.Context(), user, digest(secret), r.UserAgent()); err != nil {
		return err
	}
	s.began(w, r, secret)
	return nil
}

func (s *SignIn) began(w http.ResponseWriter, r *http.Request, secret string) {
	if before := s.jar.Get(r, sessionCookie); before != "" {
		if err := s.records.end(r.Context(), digest(before)); err != nil {
			s.Log.Warn("the session before cannot be ended", "error", err)
		}
	}
	s.jar.Set(w, r, sessionCookie, secret, sessionLasts)
}

// Close ends connections to the issuer.
func (s *SignIn) Close() { s.client.CloseIdleConnections() }

// DefaultLookEvery is how often it is asked whether what long requests were let in
// by still counts. Short ones are over before.
const DefaultLookEvery = 5 * time.Second

// opened are the requests under way, by the session or token that let them in:
// a stream goes on for hours, and must end when that ends.
type opened struct {
	mu       sync.Mutex
	requests map[*context.CancelFunc]uuid.UUID
}

// add returns a context for a request, which ends when its credential does, and
// what is to be called when the request is over.
func (o *opened) add(ctx context.Context, credential uuid.UUID) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.requests == nil {
		o.requests = map[*context.CancelFunc]uuid.UUID{}
	}
	o.requests[&cancel] = credential
	return ctx, func() {
		cancel()
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.requests, &cancel)
	}
}

// credentials are those by which something is under way.
func (o *opened) credentials() []uuid.UUID {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := slices.Collect(maps.Values(o.requests))
	slices.SortFunc(all, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	return slices.Compact(all)
}

// end ends the requests of these credentials.
func (o *opened) end(ended []uuid.UUID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for cancel, credential := range o.requests {
		if slices.Contains(ended, credential) {
			(*cancel)()
		}
	}
}

// Run ends requests whose session or token has ended, until the context ends. While
// the database is away nobody is cut off: what they are told comes from there.
func (s *SignIn) Run(ctx context.Context) {
	tick := time.NewTicker(cmp.Or(s.LookEvery, DefaultLookEvery))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		under := s.opened.credentials()
		if len(under) == 0 {
			continue
		}
		ended, err := s.records.ended(ctx, under)
		if err != nil && ctx.Err() == nil {
			s.Log.Warn("it cannot be looked up which sessions have ended; trying again", "error", err)
		}
		s.opened.end(ended)
	}
}

// endToken revokes the API token that asks: the CLI logs out.
func (s *SignIn) endToken(w http.ResponseWriter, r *http.Request) {
	if p, ok := person.From(r.Context()); !ok || !p.Token {
		problem.Write(w, http.StatusUnauthorized, "not_signed_in", "this ends the API token that asks, and there is none")
		return
	}
	_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if err := s.records.end(r.Context(), digest(strings.TrimSpace(token))); err != nil {
		if r.Context().Err() == nil {
			s.Log.Error("an API token cannot be revoked", "error", err)
		}
		problem.Write(w, http.StatusServiceUnavailable, "unavailable", "the database does not answer; try again")
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// triesPerSecond is how often one address may show what signs in, in bursts of
// triesAtOnce. Guessing 130 bits is hopeless at any rate: this keeps the database
// from being asked.
const (
	triesPerSecond = 1
	triesAtOnce    = 30

	// Of JWTs that were not verified lately: one of an unknown key has the issuer
	// asked for its keys.
	verifiesPerSecond = 5
	verifiesAtOnce    = 100
)

// mayTry reports whether who asks may show a secret now, and answers if not.
func (s *SignIn) mayTry(w http.ResponseWriter, r *http.Request) bool {
	wait, ok := s.rates.Allow(peer.Address(r, s.TrustedProxies))
	if !ok {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(max(1, wait.Seconds())))))
		problem.Refuse(w, r, http.StatusTooManyRequests, "too_many_tries", "Too many tries from your address. Try again in a moment.")
	}
	return ok
}

// errTooMany says that somebody has shown more JWTs than are looked at.
var errTooMany = errors.New("too many JWTs to check")

// mayVerify reports whether a JWT of that address's is looked at now.
func (s *SignIn) mayVerify(r *http.Request) bool {
	_, ok := s.verifies.Allow(peer.Address(r, s.TrustedProxies))
	return ok
}

// sessionLasts is how long a browser keeps the cookie. The database decides how
// long it counts.
const sessionLasts = 30 * 24 * 60 * 60

// sessionCookie is the name of the cookie of a browser that has signed in.
const sessionCookie = "trellis"

// local returns where to go after signing in: a path of this server's, and "/"
// for anything else that somebody has put there.
func local(to string) string {
	u, err := url.Parse(to)
	// Browsers take a backslash for a slash, and leave out control characters.
	if err != nil || u.Scheme != "" || u.Host != "" || !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") || strings.ContainsAny(to, "\\\t\r\n") {
		return "/"
	}
	return to
}

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
