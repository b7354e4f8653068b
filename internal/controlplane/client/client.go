// Package client asks a control plane over REST what people ask: the same
// questions, answers and refusals as package store has, from anywhere.
//
// It must not know terminals, nor where the URL and the token come from. The
// token goes to the server that it is for and nowhere else: no redirect is
// followed with it, and no error names it.
package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	connectLimit = 10 * time.Second
	// headerLimit is for the first byte of an answer: the server gives the
	// database 15 s.
	headerLimit = 30 * time.Second
	// callLimit bounds a call with its repeats; what is large may take transferLimit.
	callLimit     = time.Minute
	transferLimit = 15 * time.Minute
)

// Options say which server to ask, and as whom.
type Options struct {
	URL     string // https://trellis.example, or with a path before /api
	Token   string // sent as a Bearer; "" to sign in
	From    string // where the token is from, to say when it is refused; "": a login
	Org     string // id or name, for people who belong to several
	CAFile  string // PEM; certificates to trust besides the system's
	Version string // of this program, for the server's log
}

// Client asks one server as one person. It is safe for concurrent use.
type Client struct {
	base    *url.URL
	options Options
	http    *http.Client
	timing  timing
}

// New returns a client; it connects when it is first asked.
func New(o Options) (*Client, error) {
	base, err := ParseURL(o.URL)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: connectLimit, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   connectLimit,
		ResponseHeaderTimeout: headerLimit,
		IdleConnTimeout:       30 * time.Second,
		ForceAttemptHTTP2:     true,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if o.CAFile != "" {
		if transport.TLSClientConfig.RootCAs, err = trusted(o.CAFile); err != nil {
			return nil, err
		}
	}
	return &Client{base: base, options: o, timing: usual, http: &http.Client{
		Transport: transport,
		// What is sent is a credential: another place gets it from a person only.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// ParseURL reads the URL of a server. The error does not quote it: a password
// may be in it.
func ParseURL(text string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimRight(text, "/"))
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return nil, errors.New("the server's URL must be like https://trellis.example")
	case u.User != nil:
		return nil, errors.New("the server's URL must hold no user and no password")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New(`the server's URL must end before any "?" and "#"`)
	}
	return u, nil
}

func trusted(file string) (*x509.CertPool, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	pem, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		return nil, fmt.Errorf("read the certificates to trust: %w", err)
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", file)
	}
	return pool, nil
}

// URL is the server's, without a slash at its end.
func (c *Client) URL() string { return c.base.String() }

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }
