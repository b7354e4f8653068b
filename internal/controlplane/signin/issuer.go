package signin

import (
	"bytes"
	"cmp"
	"context"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"
)

const (
	// askLimit bounds each request to an issuer.
	askLimit = 10 * time.Second
	// answerLimit bounds what an issuer may answer.
	answerLimit = 1 << 20
)

// algorithms are those by which an issuer may sign: with a key that only it has.
// Not "none", and none whose key for verifying signs as well.
var algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

// issuer says who people are.
type issuer interface {
	// name is what people know it by.
	name() string
	// begin is where a browser goes to sign in there; it comes back to callback.
	begin(ctx context.Context, callback string, f flight) (string, error)
	// finish returns whom the browser that came back has signed in as. The error
	// is a *refusedError when it is the issuer's word or the browser's fault.
	finish(ctx context.Context, callback string, query url.Values, f flight) (claims, error)
	// verify returns whom a JWT names. The error is a *refusedError when it names
	// nobody.
	verify(ctx context.Context, jwt string) (claims, error)
}

// claims are what an issuer says of a person.
type claims struct {
	Issuer, Subject string
	// User is who it is where subjects are users' ids; else nil.
	User        *uuid.UUID
	Name, Email string
	Verified    bool // the e-mail address is theirs
	Expires     time.Time
}

// refusedError says why somebody is not signed in, for them to read.
type refusedError struct{ message string }

func (e *refusedError) Error() string { return e.message }

// unverified is why a token does not count: the token's fault, unless the keys to
// look at it with could not be had. The library says that in its text alone.
func unverified(what string, err error) error {
	if strings.Contains(err.Error(), ": fetching keys ") {
		return errors.New(short(err.Error()))
	}
	return &refusedError{what + short(err.Error())}
}

// short bounds what is shown and logged of an issuer's answer.
func short(text string) string {
	if len(text) > 300 {
		return strings.ToValidUTF8(text[:300], "") + "…"
	}
	return text
}

// limited is an http.RoundTripper that takes no more of an answer than is due.
type limited struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := l.RoundTripper.RoundTrip(r)
	if err == nil {
		response.Body = http.MaxBytesReader(nil, response.Body, answerLimit)
	}
	return response, err
}

// newClient is for requests to an issuer. What it is sent may be a secret, so it
// follows no redirect but to the same host.
func newClient() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	return &http.Client{Transport: limited{transport}, Timeout: askLimit, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if len(via) > 3 || r.URL.Scheme != via[0].URL.Scheme || r.URL.Host != via[0].URL.Host {
			return http.ErrUseLastResponse
		}
		return nil
	}}
}

// CloseIdleConnections is what http.Client asks for.
func (l limited) CloseIdleConnections() {
	if t, ok := l.RoundTripper.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// OIDC is an issuer that speaks OpenID Connect.
type OIDC struct {
	// Issuer is its URL, as its tokens have it; "": there is none.
	Issuer string
	// ClientID and ClientSecret are this server's there. Without a secret it is a
	// public client: PKCE protects its codes.
	ClientID, ClientSecret string
	// Audience is whom JWTs that programs send must be meant for; "": ClientID.
	Audience string
}

// openID is such an issuer. What it says of itself is asked for when it is needed
// first: it may be away when this server starts.
type openID struct {
	OIDC
	client *http.Client

	asking singleflight.Group

	mu       sync.Mutex
	provider *oidc.Provider
	failed   error // the last time it was asked, until retry
	retry    time.Time
}

// askAgain is how long an issuer that has not answered is not asked again: whoever
// comes meanwhile learns at once that it is away.
const askAgain = 2 * time.Second

func (o *openID) name() string {
	if u, err := url.Parse(o.Issuer); err == nil {
		return u.Host
	}
	return o.Issuer
}

// discovered returns what the issuer says of itself. It is asked once for all who
// wait, and nobody waits longer than they like.
func (o *openID) discovered(ctx context.Context) (*oidc.Provider, error) {
	if provider, err := o.known(); provider != nil || err != nil {
		return provider, err
	}
	asked := o.asking.DoChan("", func() (any, error) {
		// The keys are fetched by this context's client later on, whenever one is not known.
		provider, err := oidc.NewProvider(oidc.ClientContext(context.Background(), o.client), o.Issuer)
		o.mu.Lock()
		defer o.mu.Unlock()
		if err != nil {
			o.failed, o.retry = fmt.Errorf("ask the issuer %s about itself: %s", o.Issuer, short(err.Error())), time.Now().Add(askAgain)
			return (*oidc.Provider)(nil), o.failed
		}
		o.provider = provider
		return provider, nil
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case answer := <-asked:
		provider, _ := answer.Val.(*oidc.Provider)
		return provider, answer.Err
	}
}

// known is what the issuer has said, or that it is away; neither where it is to be
// asked.
func (o *openID) known() (*oidc.Provider, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.provider == nil && time.Now().Before(o.retry) {
		return nil, o.failed
	}
	return o.provider, nil
}

func (o *openID) oauth(provider *oidc.Provider, callback string) *oauth2.Config {
	endpoint := provider.Endpoint()
	if o.ClientSecret == "" {
		endpoint.AuthStyle = oauth2.AuthStyleInParams
	}
	return &oauth2.Config{ClientID: o.ClientID, ClientSecret: o.ClientSecret, Endpoint: endpoint, RedirectURL: callback,
		Scopes: []string{oidc.ScopeOpenID, "profile", "email"}}
}

func (o *openID) begin(ctx context.Context, callback string, f flight) (string, error) {
	provider, err := o.discovered(ctx)
	if err != nil {
		return "", err
	}
	return o.oauth(provider, callback).AuthCodeURL(f.State, oidc.Nonce(f.Nonce), oauth2.S256ChallengeOption(f.Verifier)), nil
}

func (o *openID) finish(ctx context.Context, callback string, query url.Values, f flight) (claims, error) {
	if subtle.ConstantTimeCompare([]byte(query.Get("state")), []byte(f.State)) != 1 {
		return claims{}, &refusedError{"this answer belongs to another attempt to sign in"}
	}
	if iss := query.Get("iss"); iss != "" && iss != o.Issuer { // RFC 9207
		return claims{}, &refusedError{"this answer is another issuer's"}
	}
	provider, err := o.discovered(ctx)
	if err != nil {
		return claims{}, err
	}
	ctx = oidc.ClientContext(ctx, o.client)
	oauth := o.oauth(provider, callback)
	token, err := oauth.Exchange(ctx, query.Get("code"), oauth2.VerifierOption(f.Verifier))
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok && refused.Response.StatusCode < 500 {
		return claims{}, &refusedError{fmt.Sprintf("the issuer does not take its code back (%s)", cmp.Or(refused.ErrorCode, refused.Response.Status))}
	}
	if err != nil {
		return claims{}, fmt.Errorf("exchange the code: %w", err)
	}
	raw, _ := token.Extra("id_token").(string)
	id, err := provider.Verifier(&oidc.Config{ClientID: o.ClientID, SupportedSigningAlgs: algorithms}).Verify(ctx, raw)
	if err != nil {
		return claims{}, unverified("the issuer's answer does not count: ", err)
	}
	if subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(f.Nonce)) != 1 {
		return claims{}, &refusedError{"the issuer's answer belongs to another attempt to sign in (nonce)"}
	}
	c, err := o.read(id)
	if err == nil && c.Email == "" && provider.UserInfoEndpoint() != "" {
		// Some issuers say no more than who in the token.
		if info, err := provider.UserInfo(ctx, oauth.TokenSource(ctx, token)); err == nil && info.Subject == c.Subject {
			var more said
			if info.Claims(&more) == nil {
				c.Email, c.Verified, c.Name = more.Email, bool(more.Verified), cmp.Or(c.Name, more.name())
			}
		}
	}
	return c, err
}

func (o *openID) verify(ctx context.Context, jwt string) (claims, error) {
	provider, err := o.discovered(ctx)
	if err != nil {
		return claims{}, err
	}
	id, err := provider.Verifier(&oidc.Config{ClientID: cmp.Or(o.Audience, o.ClientID), SupportedSigningAlgs: algorithms}).Verify(ctx, jwt)
	if err != nil {
		return claims{}, unverified("", err)
	}
	return o.read(id)
}

func (o *openID) read(id *oidc.IDToken) (claims, error) {
	var more said
	if err := id.Claims(&more); err != nil {
		return claims{}, &refusedError{"the token's claims cannot be read: " + err.Error()}
	}
	if id.Subject == "" || len(id.Subject) > 255 || id.Subject != storable(id.Subject) {
		return claims{}, &refusedError{"the token has no subject that could be kept"}
	}
	return claims{Issuer: o.Issuer, Subject: id.Subject, Name: more.name(), Email: more.Email, Verified: bool(more.Verified), Expires: id.Expiry}, nil
}

// said are the claims that name a person.
type said struct {
	Name     string `json:"name"`
	Login    string `json:"preferred_username"`
	Email    string `json:"email"`
	Verified truth  `json:"email_verified"`
}

func (s said) name() string { return cmp.Or(s.Name, s.Login) }

// truth is a boolean that some issuers write as a text.
type truth bool

// UnmarshalJSON implements json.Unmarshaler.
func (t *truth) UnmarshalJSON(data []byte) error {
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		return err
	}
	*t = value == true || value == "true"
	return nil
}

const (
	// maxJWTs is how many are remembered.
	maxJWTs = 10_000
	// remembered is how long one that was verified counts without another look.
	remembered = time.Minute
)

// jwts are those that were verified lately, by their digests: a program sends the
// same one with each request.
type jwts struct {
	known *lru.Cache[string, verified]
}

type verified struct {
	found
	look time.Time // when another look is due
}

func newJWTs() jwts {
	known, _ := lru.New[string, verified](maxJWTs) // fails for no size only
	return jwts{known}
}

// get returns whom one names; nobody where it was not verified lately.
func (j jwts) get(digest []byte) found {
	v, _ := j.known.Get(string(digest))
	if !time.Now().Before(v.look) {
		return found{}
	}
	return v.found
}

func (j jwts) add(digest []byte, f found) {
	look := time.Now().Add(remembered)
	if f.until.Before(look) {
		look = f.until
	}
	j.known.Add(string(digest), verified{f, look})
}

// Supabase is a project whose users are this server's.
type Supabase struct {
	URL string // https://PROJECT.supabase.co; "": there is none
	// Key is the project's publishable (anon) key: every browser may have it.
	Key string
	// Provider is how browsers sign in there, such as github; "": not at all.
	Provider string
}

// goTrue is what such a project's users sign in at. A subject there is a user's id,
// as auth.uid() answers it.
type goTrue struct {
	Supabase
	client   *http.Client
	verifier *oidc.IDTokenVerifier
}

func newGoTrue(s Supabase, client *http.Client) *goTrue {
	base := s.URL + "/auth/v1"
	keys := oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), client), base+"/.well-known/jwks.json")
	return &goTrue{Supabase: s, client: client,
		verifier: oidc.NewVerifier(base, keys, &oidc.Config{ClientID: "authenticated", SupportedSigningAlgs: algorithms})}
}

func (g *goTrue) name() string { return g.Provider }

// begin: there is neither state nor nonce in this flow. Another browser's code
// does not fit this one's verifier, which does what they would.
func (g *goTrue) begin(_ context.Context, callback string, f flight) (string, error) {
	return g.URL + "/auth/v1/authorize?" + url.Values{
		"provider": {g.Provider}, "redirect_to": {callback}, "code_challenge": {oauth2.S256ChallengeFromVerifier(f.Verifier)}, "code_challenge_method": {"s256"},
	}.Encode(), nil
}

func (g *goTrue) finish(ctx context.Context, _ string, query url.Values, f flight) (claims, error) {
	body, err := json.Marshal(map[string]string{"auth_code": query.Get("code"), "code_verifier": f.Verifier})
	if err != nil {
		return claims{}, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+"/auth/v1/token?grant_type=pkce", bytes.NewReader(body)) //nolint:gosec // the project that the server was told
	if err != nil {
		return claims{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("apikey", g.Key)
	response, err := g.client.Do(r) //nolint:gosec // as above
	if err != nil {
		return claims{}, fmt.Errorf("exchange the code: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return claims{}, fmt.Errorf("exchange the code: %w", err)
	case response.StatusCode >= 500:
		return claims{}, fmt.Errorf("exchange the code: Supabase answers %s", response.Status)
	case response.StatusCode != http.StatusOK:
		return claims{}, &refusedError{"Supabase does not take its code back (" + response.Status + ")"}
	}
	var token struct {
		User struct {
			ID          string     `json:"id"`
			Email       string     `json:"email"`
			ConfirmedAt *time.Time `json:"email_confirmed_at"`
			Metadata    metadata   `json:"user_metadata"`
		} `json:"user"`
	}
	if err := json.Unmarshal(answer, &token); err != nil {
		return claims{}, errors.New("exchange the code: what Supabase answers cannot be read") // the cause may quote a token
	}
	u := token.User
	return g.claims(u.ID, u.Metadata, u.Email, u.ConfirmedAt != nil, time.Time{})
}

func (g *goTrue) verify(ctx context.Context, jwt string) (claims, error) {
	id, err := g.verifier.Verify(ctx, jwt)
	if err != nil {
		return claims{}, unverified("", err)
	}
	var more struct {
		Email    string   `json:"email"`
		Role     string   `json:"role"`
		Metadata metadata `json:"user_metadata"`
	}
	if err := id.Claims(&more); err != nil {
		return claims{}, &refusedError{"the token's claims cannot be read: " + err.Error()}
	}
	if more.Role != "authenticated" {
		return claims{}, &refusedError{fmt.Sprintf("the token's role is %q, not authenticated", more.Role)}
	}
	// Whether the address is confirmed is not in the token; what says so there the
	// user can change.
	return g.claims(id.Subject, more.Metadata, more.Email, false, id.Expiry)
}

func (g *goTrue) claims(subject string, m metadata, email string, verified bool, expires time.Time) (claims, error) {
	user, err := uuid.Parse(subject)
	if err != nil || user == uuid.Nil {
		return claims{}, &refusedError{"the subject is no user's id"}
	}
	return claims{Issuer: strings.TrimRight(g.URL, "/") + "/auth/v1", Subject: user.String(), User: &user, Name: cmp.Or(m.FullName, m.Name, m.UserName), Email: email, Verified: verified, Expires: expires}, nil
}

// metadata is what a user says of themselves.
type metadata struct {
	FullName string `json:"full_name"`
	Name     string `json:"name"`
	UserName string `json:"user_name"`
}

// flight is an attempt to sign in at an issuer that is under way. It is kept in a
// cookie, so the answer counts in the browser that has asked only.
type flight struct {
	State, Nonce, Verifier string
	To                     string // where to go then
}

const (
	flightCookie  = "trellis_signin"
	flightSeconds = 10 * 60
	// maxTo is how long the address is that is gone back to; a cookie must hold it.
	maxTo = 2000
)

// start sends a browser to the issuer.
func (s *SignIn) start(w http.ResponseWriter, r *http.Request) {
	if !s.mayTry(w, r) {
		return
	}
	f := flight{State: newSecret(), Nonce: newSecret(), Verifier: oauth2.GenerateVerifier(), To: local(r.URL.Query().Get("to"))}
	if len(f.To) > maxTo {
		f.To = "/"
	}
	to, err := s.issuer.begin(r.Context(), s.callback(r), f)
	if err != nil {
		s.fail(w, r, "begin to sign in", err)
		return
	}
	kept, err := json.Marshal(f)
	if err != nil {
		s.fail(w, r, "begin to sign in", err)
		return
	}
	s.jar.Set(w, r, flightCookie, base64.RawURLEncoding.EncodeToString(kept), flightSeconds)
	w.Header().Set("Cache-Control", "no-store")
	http.Redirect(w, r, to, http.StatusSeeOther) //nolint:gosec // to the issuer that the server was told
}

// callback is where the issuer sends a browser back to.
func (s *SignIn) callback(r *http.Request) string { return s.Base(r) + "/signin/callback" }

// Base is how the maker of a request reaches this server, without a slash at its end.
func (s *SignIn) Base(r *http.Request) string {
	switch {
	case s.PublicURL != "":
		return s.PublicURL
	case s.jar.Secure(r):
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

// returned signs in the browser that comes back from the issuer.
func (s *SignIn) returned(w http.ResponseWriter, r *http.Request) {
	if !s.mayTry(w, r) {
		return
	}
	var f flight
	kept, err := base64.RawURLEncoding.DecodeString(s.jar.Get(r, flightCookie))
	if err == nil {
		err = json.Unmarshal(kept, &f)
	}
	if err != nil || f.State == "" || f.Verifier == "" {
		s.refused(w, "this browser has not asked to sign in, or too long ago")
		return
	}
	s.jar.Set(w, r, flightCookie, "", -1) // it counts once
	query := r.URL.Query()
	if query.Get("code") == "" {
		s.refused(w, "the issuer says: "+strings.TrimSpace(query.Get("error")+" "+query.Get("error_description")))
		return
	}
	c, err := s.issuer.finish(r.Context(), s.callback(r), query, f)
	if refused, ok := errors.AsType[*refusedError](err); ok {
		s.Log.Warn("somebody was not signed in", "cause", refused)
		s.refused(w, refused.message)
		return
	}
	if err == nil {
		var user uuid.UUID
		if user, err = s.records.signIn(r.Context(), c, s.FirstAdmin); err == nil {
			err = s.begin(w, r, user)
		}
	}
	if err != nil {
		s.fail(w, r, "sign in", err)
		return
	}
	http.Redirect(w, r, local(f.To), http.StatusSeeOther)
}

func (s *SignIn) refused(w http.ResponseWriter, why string) {
	s.show(w, http.StatusForbidden, "note", note{"Sign in", "You are not signed in: " + why + ".", "Try again from the start."})
}

// known returns the person whom a JWT names.
func (s *SignIn) known(r *http.Request, jwt string) (found, error) {
	if f := s.jwts.get(digest(jwt)); f.ok || s.issuer == nil {
		return f, nil
	}
	if !s.mayVerify(r) {
		return found{}, errTooMany
	}
	c, err := s.issuer.verify(r.Context(), jwt)
	if refused, ok := errors.AsType[*refusedError](err); ok {
		if s.refusals.Allow() {
			s.Log.Warn("a JWT was refused", "cause", refused)
		}
		return found{}, nil
	}
	if err != nil {
		return found{}, err
	}
	p, err := s.records.identified(r.Context(), c)
	if err != nil {
		return found{}, err
	}
	f := found{person: p, ok: true, until: c.Expires}
	s.jwts.add(digest(jwt), f)
	return f, nil
}

// startURL is where a browser goes to begin at the issuer.
func startURL(to string) string { return "/signin/start?to=" + url.QueryEscape(to) }
