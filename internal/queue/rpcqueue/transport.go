package rpcqueue

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/postgrest"
)

// endpoint returns the URL below which the functions are, for one of a Supabase
// project, of trellis, or of PostgREST itself.
func endpoint(address string) (*url.URL, error) {
	parsed, err := url.Parse(address)
	switch {
	case err != nil:
		// The error would show the whole of it.
		return nil, errors.New("it is none")
	case parsed.Scheme != "https" && parsed.Scheme != "http", parsed.Host == "":
		return nil, errors.New("it must be https://HOST or https://HOST/PATH")
	case parsed.User != nil, parsed.RawQuery != "", parsed.Fragment != "":
		return nil, errors.New("it must hold no user, password, query or fragment")
	}
	path := strings.TrimRight(parsed.Path, "/")
	switch {
	case strings.HasSuffix(path, "/rpc"):
	case strings.HasSuffix(path, "/rest/v1"):
		path += "/rpc"
	default:
		path += "/rest/v1/rpc"
	}
	return &url.URL{Scheme: parsed.Scheme, Host: parsed.Host, Path: path}, nil
}

// idleConns is how many connections are kept where HTTP/2 does not share one:
// heartbeat, claim and some log streams at once.
const idleConns = 8

func newTransport(o Options, timeout time.Duration) (*http.Transport, error) {
	roots, err := Authorities(o.CAFile)
	if err != nil {
		return nil, err
	}
	proxy := o.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	return &http.Transport{
		Proxy: proxy,
		// Making a connection takes no longer than a call: who waits for it may
		// have given up, and it goes on.
		DialContext:         (&net.Dialer{Timeout: timeout, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: timeout,
		TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:   true,
		MaxIdleConns:        idleConns, MaxIdleConnsPerHost: idleConns,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: mostHeader,
		// All calls share one connection, so nobody else finds out that what
		// stands between has forgotten it.
		HTTP2: &http.HTTP2Config{SendPingTimeout: timeout / 2, PingTimeout: timeout / 2},
	}, nil
}

// Authorities reads certificates to trust beside the system's from a PEM file;
// nil, for no file, is the system's alone.
func Authorities(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	bundle, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(bundle) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", file)
	}
	return pool, nil
}

// newHeader is the header of every request.
func newHeader(o Options) http.Header {
	header := http.Header{
		"Content-Type": {postgrest.ContentType},
		"Accept":       {postgrest.ContentType},
		"User-Agent":   {"tendril/" + o.Agent.Version},
		// PostgREST serves the schema that its configuration names first unless
		// it is told.
		postgrest.ContentProfile: {postgrest.Schema},
		// Not sent: it tells net/http that the request may be repeated on
		// another connection when one that was kept turns out to be closed.
		"Idempotency-Key": nil,
	}
	if o.APIKey != "" {
		header[postgrest.APIKey] = []string{o.APIKey}
	}
	if strings.HasPrefix(o.APIKey, "eyJ") {
		// A legacy key is a JWT that says the role; a newer one is none, and the
		// role comes from what stands before PostgREST.
		header["Authorization"] = []string{"Bearer " + o.APIKey}
	}
	return header
}
