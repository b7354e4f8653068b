// Package signin finds out who asks: by the cookie of a browser that has signed
// in, or by what a program sends as Bearer. It serves the pages by which people
// sign in and out, and by which the CLI is let in.
//
// What is shown is compared by its digest with what schema tendril keeps; this
// package keeps nothing. It must not know what a person may do, nor what is
// served to them.
package signin

import (
	"context"
	"crypto/sha256"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"github.com/tendril-run/tendril/internal/controlplane/cookie"
	"github.com/tendril-run/tendril/internal/controlplane/peer"
	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/controlplane/store"
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
	Log       *slog.Logger
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
		rates: peer.NewRates(triesPerSecond, triesAtOnce), verifies: peer.NewRates(verifiesPerSecond, verifiesAtOnce), refusals: rate.NewLimiter(1, 5)}
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
	s.mux.HandleFunc("POST /api/v1/cli/token", s.exchange)
	s.mux.HandleFunc("DELETE /api/v1/cli/token", s.endToken)
	return s, nil
}

// Mount adds the pages and operations of this package to a server's.
func (s *SignIn) Mount(mux *http.ServeMux) {
	for _, path := range []string{"/signin", "/signin/", "/signout", "/cli/authorize", "POST /api/v1/cli/token", "DELETE /api/v1/cli/token"} {
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
		f, err := s.find(r)
		if err != nil && r.Context().Err() == nil {
			s.unknown(w, r, err)
			return
		}
		if f.ok {
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
