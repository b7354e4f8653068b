package rpcqueue

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/postgrest"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/retry"
	"github.com/tendril-run/tendril/internal/signature"
)

// How a hiccup is met: so many tries of a call, the first repeat so soon, and no
// wait longer than that.
const (
	tries      = 3
	repeatSoon = 100 * time.Millisecond
	patience   = time.Second
)

// mostAnswer is the largest answer that is read, and mostHeader the largest
// header of one. A snapshot is the largest thing that is answered, and the
// database takes none above 256 KiB.
const (
	mostAnswer = 1 << 20
	mostHeader = 64 << 10
)

// reply is what a function answers, once it has been read.
type reply interface {
	// valid tells whether it is what the function answers: any JSON fits into
	// most things.
	valid() bool
}

// call calls a function and reads its result into reply, nil for none.
func (q *Queue) call(ctx context.Context, doing, function string, arguments any, reply reply) error {
	return q.callFor(ctx, 0, doing, function, arguments, reply)
}

// callFor is call for one that is answered with so many bytes.
func (q *Queue) callFor(ctx context.Context, answer int, doing, function string, arguments any, reply reply) error {
	body, err := json.Marshal(arguments)
	if err != nil {
		return fmt.Errorf("encode what is sent to %s: %w", function, err)
	}
	return q.send(ctx, queue.CallLimit(q.timeout, len(body)+answer), doing, function, body, reply)
}

// send is call for arguments that are encoded, within a time limit. What goes wrong
// in passing is tried again, which is safe: every call may be repeated.
func (q *Queue) send(ctx context.Context, limit time.Duration, doing, function string, body []byte, reply reply) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	soon := retry.Between(repeatSoon, patience)
	soon.Multiplier = 3
	for n := 1; ; n++ {
		err := q.try(ctx, doing, function, body, reply)
		if err == nil {
			q.away.Store(false)
			return nil
		}
		if !err.passing {
			q.away.Store(false) // it is there, and says no
			return err.Error
		}
		wait := queue.Wait(err.Error, soon.NextBackOff())
		if n == tries || q.away.Load() || wait > patience || !retry.Sleep(ctx, wait) {
			q.away.Store(true)
			return err.Error
		}
	}
}

// trouble is why a try came to nothing.
type trouble struct {
	*queue.Error
	// passing: the same request may succeed in a moment.
	passing bool
}

// try makes one exchange.
func (q *Queue) try(ctx context.Context, doing, function string, body []byte, reply reply) *trouble {
	_, err := q.exchange(ctx, q.header.Clone(), doing, function, body, reply)
	return err
}

// exchange sends a request and reads the answer, whose header it returns. It follows no redirect:
// what it sends is a credential.
func (q *Queue) exchange(ctx context.Context, header http.Header, doing, function string, body []byte, reply reply) (http.Header, *trouble) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, q.functions+"/"+function, bytes.NewReader(body))
	if err != nil {
		return nil, &trouble{Error: &queue.Error{Kind: queue.Refused, Message: fmt.Sprintf("could not %s: %v", doing, err), Err: err}}
	}
	request.Header = header
	if key := q.signers.of(body); key != nil {
		if err := signature.Sign(request, body, key, time.Now()); err != nil {
			return nil, &trouble{Error: &queue.Error{Kind: queue.Refused, Message: fmt.Sprintf("could not %s: %v", doing, err), Err: err}}
		}
	}
	response, err := q.transport.RoundTrip(request)
	if err != nil {
		return nil, q.unanswered(ctx, doing, err)
	}
	defer response.Body.Close() //nolint:errcheck // read to its end, or given up
	answer := answer{status: response.StatusCode, header: response.Header}
	answer.body, err = io.ReadAll(io.LimitReader(response.Body, mostAnswer+1))
	if err != nil {
		return nil, q.unanswered(ctx, doing, err)
	}
	if len(answer.body) > mostAnswer {
		answer.body, answer.endless = nil, true
	}
	if answer.result(reply) {
		return answer.header, nil
	}
	return nil, q.explain(doing, answer)
}

// mostRetryAfter is the longest that an agent lets itself be sent away for, well
// within a lease.
const mostRetryAfter = 30 * time.Second

// retryAfter reads the header of that name, in seconds or a date, and adds up to
// a fifth: all agents were told the same.
func retryAfter(header http.Header) time.Duration {
	text := header.Get("Retry-After")
	var d time.Duration
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		d = time.Duration(n) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		now := time.Now()
		// By the server's clock, if it says what that is.
		if date, err := http.ParseTime(header.Get("Date")); err == nil {
			now = date
		}
		d = at.Sub(now)
	}
	if d <= 0 {
		return 0
	}
	d = min(d, mostRetryAfter)
	return d + rand.N(d/5+1) //nolint:gosec // jitter, not a secret
}

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
		TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12, ClientSessionCache: tls.NewLRUClientSessionCache(idleConns)},
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

const idempotent = "Idempotency-Key"

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
		idempotent: nil,
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
