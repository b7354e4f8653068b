package signin

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
)

const (
	// askLimit bounds each request to an issuer.
	askLimit = 10 * time.Second
	// answerLimit bounds what an issuer may answer.
	answerLimit = 1 << 20
)

// algorithms are those by which an issuer may sign: with a key that only it has.
// Not "none", and none of those where whoever verifies could sign as well.
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
