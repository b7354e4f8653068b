package client

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"time"
)

// Login is a way to a token through a browser: the person says yes there, and
// the browser brings a code back to this machine, which is good for one token,
// once, and only with what this Login knows (PKCE).
type Login struct {
	client   *Client
	listener net.Listener
	server   *http.Server
	verifier string
	state    string
	came     chan came
	served   chan struct{}
}

// came is what the browser brought.
type came struct {
	code string
	err  error
}

// Token is what a login ends with.
type Token struct {
	Token     string     `json:"token"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

// NewLogin listens on this machine for the browser's return. Whoever made it
// calls Close.
func (c *Client) NewLogin(ctx context.Context) (*Login, error) {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the browser: %w", err)
	}
	l := &Login{client: c, listener: listener, verifier: rand.Text() + rand.Text(), state: rand.Text(), came: make(chan came, 1), served: make(chan struct{})}
	l.server = &http.Server{Handler: http.HandlerFunc(l.callback), ReadHeaderTimeout: 5 * time.Second}
	go func() {
		defer close(l.served)
		_ = l.server.Serve(listener) // until Close
	}()
	return l, nil
}

// Close ends the listening.
func (l *Login) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if l.server.Shutdown(ctx) != nil { // so that the browser gets its page
		_ = l.server.Close()
	}
	<-l.served
}

// URL is where the person says yes. host says whom they let in.
func (l *Login) URL(host string) string {
	challenge := sha256.Sum256([]byte(l.verifier))
	u := l.client.base.JoinPath("cli", "authorize")
	u.RawQuery = url.Values{
		"port": {strconv.Itoa(l.listener.Addr().(*net.TCPAddr).Port)}, "state": {l.state}, "host": {notInHost.ReplaceAllString(host, "-")},
		"challenge": {base64.RawURLEncoding.EncodeToString(challenge[:])},
	}.Encode()
	return u.String()
}

// notInHost is what the server takes no host with.
var notInHost = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// Wait waits for the browser, and changes the code it brings for a token.
func (l *Login) Wait(ctx context.Context) (Token, error) {
	select {
	case <-ctx.Done():
		return Token{}, ctx.Err()
	case got := <-l.came:
		if got.err != nil {
			return Token{}, got.err
		}
		token, err := post[Token](ctx, l.client, "log in", map[string]string{"code": got.code, "verifier": l.verifier}, "cli", "token")
		if err == nil && token.Token == "" {
			err = errors.New("the server has answered without a token")
		}
		return token, err
	}
}

var callbackPage = template.Must(template.New("").Parse(`<!doctype html><html lang="en"><meta charset="utf-8"><title>trellis login</title>
<body><h1>{{.}}</h1><p>You may close this page and go back to the terminal.</p></body></html>
`))

// callback takes what the browser brings. Anything on this machine, and any page
// in a browser, can come here: only what knows the state counts.
func (l *Login) callback(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if r.URL.Path != "/callback" || r.Method != http.MethodGet || subtle.ConstantTimeCompare([]byte(query.Get("state")), []byte(l.state)) != 1 {
		http.NotFound(w, r)
		return
	}
	got, title := came{code: query.Get("code")}, "You are logged in."
	if got.code == "" {
		got.err, title = errors.New("nothing was allowed in the browser: you are not logged in"), "You are not logged in."
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	w.Header().Set("Referrer-Policy", "no-referrer") // the URL has the code
	_ = callbackPage.Execute(w, title)               // the browser may have gone
	select {
	case l.came <- got:
	default: // the first one counts
	}
}
