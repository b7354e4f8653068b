package signin

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/oauth2"
)

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
func (s *SignIn) callback(r *http.Request) string {
	base := s.PublicURL
	if base == "" {
		scheme := "http://"
		if s.jar.Secure(r) {
			scheme = "https://"
		}
		base = scheme + r.Host
	}
	return base + "/signin/callback"
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
