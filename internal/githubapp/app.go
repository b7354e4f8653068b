package githubapp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Options describe one installation of an App.
type Options struct {
	// ID is the App's id or client id.
	ID string
	// Installation is the number of the installation.
	Installation string
	// Key reads the App's private key, in PEM. It is called for each new token.
	Key func() (string, error)
	// API is the API's base URL, such as https://api.github.com.
	API string
	// Transport sends the requests; nil is net/http's.
	Transport http.RoundTripper
	// Now is the clock; nil is the machine's.
	Now func() time.Time
}

// App hands out tokens of an installation. It is safe for concurrent use.
type App struct {
	options Options
	client  *http.Client

	mu     sync.Mutex // held while a token is asked for: one at a time is enough
	token  token
	failed failure
}

// failure is why the last token was not to be had.
type failure struct {
	at  time.Time
	err error
}

const (
	// useful is how long a token is good for at least when it is handed out, so
	// that a run that is slow to fetch still can. GitHub's live an hour.
	useful = 30 * time.Minute
	// least is how long it must be when there is no new one to be had.
	least = 5 * time.Minute
	// patience bounds one request.
	patience = 10 * time.Second
)

// New returns an App that asks nothing before its first Token.
func New(o Options) *App {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.API = strings.TrimSuffix(o.API, "/")
	return &App{options: o, client: &http.Client{
		Transport: o.Transport, Timeout: patience,
		// What is signed is for this API and for no other.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Token returns a token that is good for half an hour, or, while GitHub gives
// out no new one, for some minutes at least. An error is a sentence for people
// that says what to do, and holds no secret.
func (a *App) Token(ctx context.Context) (string, error) {
	began := a.options.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed.err != nil && a.failed.at.After(began) {
		return "", a.failed.err // who waited for it does not wait as long again
	}
	now := a.options.Now()
	if a.token.text != "" && a.token.expires.Sub(now) >= useful {
		return a.token.text, nil
	}
	fresh, err := a.ask(ctx, now)
	if err != nil {
		if a.token.text != "" && a.token.expires.Sub(now) >= least {
			return a.token.text, nil
		}
		if ctx.Err() == nil { // else it is this caller's
			a.failed = failure{at: a.options.Now(), err: err}
		}
		return "", err
	}
	a.token, a.failed = fresh, failure{}
	return fresh.text, nil
}

// sign makes the statement by which the App identifies itself. It begins a
// minute ago, for clocks differ; GitHub takes none that lasts over ten minutes.
func (a *App) sign(now time.Time) (string, error) {
	pem, err := a.options.Key()
	if err != nil {
		return "", fmt.Errorf("the App's private key: %w", err)
	}
	key, err := jwt.ParseRSAPrivateKeyFromPEM([]byte(pem))
	if err != nil {
		// Not the library's words, which might quote the file.
		return "", errors.New("the file of the App's private key holds no RSA key in PEM; download a new one from the App's settings")
	}
	signed, err := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.RegisteredClaims{
		Issuer: a.options.ID, IssuedAt: jwt.NewNumericDate(now.Add(-time.Minute)), ExpiresAt: jwt.NewNumericDate(now.Add(8 * time.Minute)),
	}).SignedString(key)
	if err != nil {
		return "", fmt.Errorf("sign as the App: %w", err)
	}
	return signed, nil
}
