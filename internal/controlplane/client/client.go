// Package client asks a control plane over REST what people ask, in the types of
// package wire; it refuses as package problem has it.
//
// It must not know terminals, nor where the URL and the token come from. The
// token goes to the server that it is for and nowhere else: no redirect is
// followed with it, and no error names it.
//
// A lost answer is asked for again, a POST under one Idempotency-Key, a DELETE
// never. Following a log goes by the numbers of its rows, whatever carries them: a
// gap, a cut stream or a silent one makes it read the rows by range. It reads the
// status before the log, so a log that is read after the end is whole.
package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/tracing"
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
	// Transport carries the requests, such as to a handler in this process; nil: the
	// network. CAFile means nothing to it.
	Transport http.RoundTripper
	// Tool is the name and version of the client of a tool for language models, for which this one
	// asks; "": a person asks.
	Tool string
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
	if o.Transport != nil {
		return &Client{base: base, options: o, timing: usual, http: &http.Client{Transport: o.Transport, CheckRedirect: noRedirect}}, nil
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
	return &Client{base: base, options: o, timing: usual, http: &http.Client{Transport: transport, CheckRedirect: noRedirect}}, nil
}

// noRedirect follows none: what is sent is a credential, and another place gets it from
// a person only.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// ForTool returns a client like this one with another Options.Tool. The server then lets it
// propose changes only, unless its token says otherwise.
func (c *Client) ForTool(tool string) *Client {
	asTool := *c
	asTool.options.Tool = tool
	return &asTool
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

const (
	// mostAnswer bounds a JSON answer: a page of 100 pieces of a log, 64 KiB
	// each and escaped, is the largest.
	mostAnswer = 64 << 20
	// attempts is how often a call is made when its answer is lost, or the
	// server says that it is busy.
	attempts  = 4
	mostRetry = 10 * time.Second // the longest Retry-After that is waited for
)

// call is one request.
type call struct {
	doing  string // for errors
	method string
	path   []string // its segments below /api/v1, not escaped
	query  url.Values
	body   any    // sent as JSON; nil for none
	raw    []byte // sent as it is
	accept string // application/json when empty
	limit  time.Duration
}

// repeatable reports whether a call may be made again when nobody knows what
// became of it: a POST has a key by which the server knows a repeat.
func (c call) repeatable() bool { return c.method != http.MethodDelete }

// ask makes a call and decodes its answer; T is struct{} where there is none.
func ask[T any](ctx context.Context, c *Client, call call) (answer T, err error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(call.limit, callLimit))
	defer cancel()
	response, err := c.send(ctx, call)
	if err != nil {
		return answer, err
	}
	defer func() { _ = response.Body.Close() }()
	switch into := any(&answer).(type) {
	case *struct{}:
		return answer, nil
	case *[]byte:
		if *into, err = bounded(response.Body, mostBytes); err != nil {
			return answer, c.away(ctx, call.doing, err)
		}
		return answer, nil
	}
	data, err := bounded(response.Body, mostAnswer)
	if err != nil {
		return answer, c.away(ctx, call.doing, err)
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return answer, &problem.UnreachableError{Doing: call.doing, Err: fmt.Errorf("%s answers something else than a Tendril server would (%s)", c.base.Host, response.Header.Get("Content-Type"))}
	}
	return answer, nil
}

// bounded reads all of a body that may have so many bytes.
func bounded(body io.Reader, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(body, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("the answer has more than %d MiB", most>>20)
	}
	return data, err
}

// send makes a call, again where that may help, and returns an answer of the
// 200s. Its error is a *problem.RefusedError or a *problem.UnreachableError, or the
// context's own.
func (c *Client) send(ctx context.Context, call call) (*http.Response, error) {
	body := call.raw
	if call.body != nil {
		var err error
		if body, err = json.Marshal(call.body); err != nil {
			return nil, fmt.Errorf("encode the request: %w", err)
		}
	}
	key := uuid.NewString()
	for attempt := 1; ; attempt++ {
		response, err := c.once(ctx, call, body, key)
		if err == nil && response.StatusCode/100 == 2 {
			return response, nil
		}
		wait := c.timing.retry << (2 * (attempt - 1))
		if err == nil {
			if after, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && after > 0 {
				wait = min(time.Duration(after)*time.Second, mostRetry)
			}
			err = c.refusal(call.doing, response)
			_ = response.Body.Close()
			// What is kept as the answer to the key stays.
			kept := response.Header.Get("Idempotency-Replayed") == "true"
			if !passing(response.StatusCode) || kept || attempt == attempts || !call.repeatable() {
				return nil, err
			}
		} else if refused, ok := errors.AsType[*problem.RefusedError](err); ok {
			return nil, refused
		} else {
			_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
			// What is refused at once is refused again.
			once := untrusted || errors.Is(err, syscall.ECONNREFUSED)
			if err = c.away(ctx, call.doing, err); once || ctx.Err() != nil || attempt == attempts || !call.repeatable() {
				return nil, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, c.away(ctx, call.doing, ctx.Err())
		case <-time.After(wait):
		}
	}
}

// passing reports whether a status is of something that passes.
func passing(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusBadGateway || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout
}

// once makes a call once.
func (c *Client) once(ctx context.Context, call call, body []byte, key string) (*http.Response, error) {
	u := c.base.JoinPath("api", "v1")
	for _, segment := range call.path {
		if strings.Trim(segment, ".") == "" { // a path could not have it
			return nil, &problem.RefusedError{Code: code(http.StatusNotFound), Reason: "not_found", Message: fmt.Sprintf("nothing is named %q", segment)}
		}
		u = u.JoinPath(url.PathEscape(segment)) // a workspace's name has slashes
	}
	u.RawQuery = call.query.Encode()
	request, err := http.NewRequestWithContext(ctx, call.method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	h := request.Header
	h.Set("Accept", cmp.Or(call.accept, "application/json"))
	h.Set("User-Agent", "trellis/"+cmp.Or(c.options.Version, "dev"))
	if c.options.Tool != "" {
		h.Set("Tendril-Tool", c.options.Tool)
	}
	if traceparent := tracing.From(ctx); traceparent != "" {
		h.Set("Traceparent", traceparent)
	}
	if c.options.Token != "" {
		h.Set("Authorization", "Bearer "+c.options.Token)
	}
	switch {
	case call.raw != nil:
		h.Set("Content-Type", "application/octet-stream")
	case call.body != nil:
		h.Set("Content-Type", "application/json")
	}
	if call.method == http.MethodPost {
		h.Set("Idempotency-Key", key)
	}
	return c.http.Do(request)
}

// list asks for the pages of a list until it has most of its items.
func list[T any](ctx context.Context, c *Client, call call, most int) ([]T, error) {
	query := url.Values{}
	for name, values := range call.query {
		query[name] = values
	}
	call.query = query
	found := []T{}
	for {
		query.Set("limit", strconv.Itoa(min(mostPage, most-len(found))))
		next, err := ask[wire.Page[T]](ctx, c, call)
		if err != nil {
			return nil, err
		}
		found = append(found, next.Items...)
		// A page of a filtered list may be empty before the end.
		if next.NextCursor == "" || next.NextCursor == query.Get("cursor") || len(found) >= most {
			return found, nil
		}
		query.Set("cursor", next.NextCursor)
	}
}

// whole asks for a list that comes in one page.
func whole[T any](ctx context.Context, c *Client, doing string, query url.Values, path ...string) ([]T, error) {
	answer, err := ask[wire.Page[T]](ctx, c, call{doing: doing, method: http.MethodGet, path: path, query: query})
	if answer.Items == nil {
		answer.Items = []T{} // as JSON, a list
	}
	return answer.Items, err
}

const (
	mostPage = 200 // items of one page, as the server has it
)

// MostItems is how many items a list that is wanted whole has at most.
const MostItems = 10_000

// inOrg is the query of what is made in an organisation.
func (c *Client) inOrg() url.Values {
	if c.options.Org == "" {
		return nil
	}
	return url.Values{"org": {c.options.Org}}
}

func get[T any](ctx context.Context, c *Client, doing string, path ...string) (T, error) {
	return ask[T](ctx, c, call{doing: doing, method: http.MethodGet, path: path})
}

func post[T any](ctx context.Context, c *Client, doing string, body any, path ...string) (T, error) {
	return ask[T](ctx, c, call{doing: doing, method: http.MethodPost, path: path, body: body})
}

func (c *Client) remove(ctx context.Context, doing string, query url.Values, path ...string) error {
	_, err := ask[struct{}](ctx, c, call{doing: doing, method: http.MethodDelete, path: path, query: query})
	return err
}

// mostProblem bounds what is read of an answer that is no success.
const mostProblem = 1 << 20

// refusal is what an answer that is no success means.
func (c *Client) refusal(doing string, response *http.Response) error {
	status := response.StatusCode
	if status/100 == 3 {
		return &problem.RefusedError{Code: code(status), Reason: "redirected", Message: fmt.Sprintf("could not %s: %s sends to %s", doing, c.base.Host, origin(response.Header.Get("Location"))),
			Hint: "if that is your server, log in there: trellis login URL"}
	}
	var p wire.Problem
	data, err := bounded(response.Body, mostProblem)
	told := err == nil && strings.Contains(response.Header.Get("Content-Type"), "json") && json.Unmarshal(data, &p) == nil && (p.Detail != "" || p.Title != "")
	if !told && status >= 500 {
		return &problem.UnreachableError{Doing: doing, Err: fmt.Errorf("%s answers %s", c.base.Host, response.Status)}
	}
	if !told {
		return &problem.UnreachableError{Doing: doing, Err: fmt.Errorf("%s answers %s, and not as a Tendril server would", c.base.Host, response.Status)}
	}
	message := textOf(p)
	switch {
	case status == http.StatusUnauthorized:
		hint := p.Hint
		if hint == "" {
			hint = "log in: trellis login " + c.URL()
		}
		if c.options.From != "" {
			hint = "the token is that of " + c.options.From + ": give another, or unset it and log in: trellis login " + c.URL()
		}
		return &problem.RefusedError{Code: code(status), Reason: p.Reason, Message: fmt.Sprintf("%s does not know you: %s", c.base.Host, message), Hint: hint}
	case status == http.StatusTooManyRequests || status >= 500:
		return &problem.UnreachableError{Doing: doing, Err: errors.New(message)}
	}
	return &problem.RefusedError{Code: code(status), Reason: p.Reason, Message: message, Hint: p.Hint}
}

// textOf is what a problem says, a line for each field that is wrong.
func textOf(p wire.Problem) string {
	message := strings.ReplaceAll("\n"+p.Detail, "\nbody.", "\n")[1:]
	if message == "" {
		message = p.Title
	}
	for _, field := range p.Errors {
		line := field.Message
		if place := strings.TrimPrefix(field.Location, "body."); place != "" && !strings.HasPrefix(line, place) {
			line = place + ": " + line
		}
		if !strings.Contains(message, line) {
			message += "\n" + line
		}
	}
	return message
}

func code(status int) string { return fmt.Sprintf("PT%d", status) }

// origin is where a redirect leads, without what may be secret in it.
func origin(location string) string {
	u, err := url.Parse(location)
	if err != nil || u.Host == "" {
		return "another page"
	}
	return u.Scheme + "://" + u.Host
}

// away is what a call that got no answer means. What the caller ended itself
// stays as it is.
func (c *Client) away(ctx context.Context, doing string, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	if timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err); ok && timeout.Timeout() {
		return &problem.UnreachableError{Doing: doing, Err: fmt.Errorf("%s did not answer in time", c.base.Host)}
	}
	if asked, ok := errors.AsType[*url.Error](err); ok {
		err = asked.Err // which repeats the whole URL
	}
	return &problem.UnreachableError{Doing: doing, Err: fmt.Errorf("%s cannot be reached: %w", c.base.Host, err)}
}

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

// NewLogin listens on this machine for the browser's return. The caller calls Close.
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
func (l *Login) Wait(ctx context.Context) (wire.CliToken, error) {
	select {
	case <-ctx.Done():
		return wire.CliToken{}, ctx.Err()
	case got := <-l.came:
		if got.err != nil {
			return wire.CliToken{}, got.err
		}
		token, err := post[wire.CliToken](ctx, l.client, "log in", wire.CliCode{Code: got.code, Verifier: l.verifier}, "cli", "token")
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
