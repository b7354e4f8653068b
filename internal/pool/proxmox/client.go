package proxmox

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/retry"
	"github.com/tendril-run/tendril/internal/secretfile"
)

// mostBytes bounds one answer. A cluster of 10,000 machines lists them in some 5 MB.
const mostBytes = 16 << 20

// client sends requests to one API. It is for several goroutines at once.
type client struct {
	base      string
	http      *http.Client
	tokenFile string
	given     string // the token, where the file can't be read; "": the file is read
	timeout   time.Duration
	pace      float64

	mu    sync.Mutex
	token string // USER@REALM!NAME=UUID
}

// apiError is an answer that is no success.
type apiError struct {
	method, path string
	status       int
	text         string
	fields       map[string]string
}

func (e *apiError) Error() string {
	text := e.text
	for _, name := range slices.Sorted(maps.Keys(e.fields)) {
		text += "; " + name + ": " + e.fields[name]
	}
	return fmt.Sprintf("%s %s: Proxmox answers %d %s", e.method, e.path, e.status, text)
}

// lostError says that there was no answer: the request may have been carried out or not.
type lostError struct {
	method, path string
	err          error
}

func (e *lostError) Error() string { return fmt.Sprintf("%s %s: %v", e.method, e.path, e.err) }
func (e *lostError) Unwrap() []error {
	return []error{pool.ErrUnreachable, e.err}
}

var tokens = lazyregexp.New(`^([^\s@!=/]{1,64}@[A-Za-z][A-Za-z0-9.\-_]{1,32}![A-Za-z][A-Za-z0-9.\-_]{1,127})=([0-9A-Za-z-]{6,128})$`)

func newClient(c pool.Config, pace float64) (*client, error) {
	u, err := url.Parse(strings.TrimRight(c.URL, "/"))
	switch {
	case err != nil:
		return nil, errors.New("url: it can't be read; write https://HOST:8006")
	case u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("url: write https://HOST:8006, without user, password or query")
	case u.Path != "" && u.Path != "/api2/json":
		return nil, fmt.Errorf("url: there is no API below %q; write https://HOST:8006", u.Path)
	}
	settings, err := c.TLS()
	if err != nil {
		return nil, err
	}
	cl := &client{
		base: "https://" + u.Host + "/api2/json", tokenFile: c.TokenFile, given: c.Token, timeout: c.Timeout, pace: pace,
		http: &http.Client{
			Transport: &http.Transport{
				TLSClientConfig: settings, MaxIdleConnsPerHost: 8, MaxConnsPerHost: 16, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: 20 * time.Second,
				MaxResponseHeaderBytes: 64 << 10,
			},
			// A hypervisor's API never redirects; what does is something else, and gets no token.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	if cl.timeout <= 0 {
		cl.timeout = time.Minute
	}
	return cl, cl.readToken()
}

// readToken reads the token's file, at the start and when the server refuses the token, which
// may have been replaced.
func (c *client) readToken() error {
	text := c.given
	if text == "" {
		var err error
		if text, err = secretfile.Read(c.tokenFile); err != nil {
			return fmt.Errorf("token file %s %w", c.tokenFile, err)
		}
	}
	text = strings.TrimPrefix(strings.TrimSpace(text), "PVEAPIToken=")
	if !tokens.MatchString(text) {
		return fmt.Errorf("token file %s: write one line, USER@REALM!NAME=UUID, as `pveum user token add` shows it", c.tokenFile)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.token = text
	return nil
}

// identity is the token without its secret.
func (c *client) identity() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	id, _, _ := strings.Cut(c.token, "=")
	return id
}

func (c *client) secret() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.token
}

// clean shortens a server's text for a message.
var clean = pool.Clean

// once sends one request. Its answer's data is decoded into out, which may be nil.
func (c *client) once(ctx context.Context, method, path string, params url.Values, out any) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	address := c.base + path
	var body io.Reader
	if method == http.MethodGet || method == http.MethodDelete {
		if len(params) > 0 {
			address += "?" + params.Encode()
		}
	} else {
		body = strings.NewReader(params.Encode())
	}
	lost := func(err error) error {
		var inner *url.Error
		if errors.As(err, &inner) {
			err = inner.Err // without the address, which is long
		}
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
			err = fmt.Errorf("the server did not answer completely within %s", c.timeout)
		}
		return &lostError{method: method, path: path, err: err}
	}
	req, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "PVEAPIToken="+c.secret())
	if body != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, lost(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, mostBytes+1))
	switch {
	case err != nil:
		return 0, lost(err)
	case len(data) > mostBytes:
		return 0, &apiError{method: method, path: path, status: resp.StatusCode, text: fmt.Sprintf("more than %d MiB, which no answer of Proxmox has; check that the url leads to Proxmox", mostBytes>>20)}
	}
	var answer struct {
		Data    json.RawMessage   `json:"data"`
		Errors  map[string]string `json:"errors"`
		Message string            `json:"message"`
		Total   number            `json:"total"`
	}
	broken := json.Unmarshal(data, &answer)
	if resp.StatusCode != http.StatusOK {
		return 0, failure(method, path, resp, answer.Message, answer.Errors)
	}
	if broken != nil {
		return 0, &apiError{method: method, path: path, status: resp.StatusCode, text: "something that is no JSON; check that the url leads to Proxmox, and to no page in front of it"}
	}
	if out != nil {
		if err := json.Unmarshal(answer.Data, out); err != nil {
			return 0, &apiError{method: method, path: path, status: resp.StatusCode, text: "data of another form than expected: " + clean(err.Error())}
		}
	}
	return int(answer.Total), nil
}

func failure(method, path string, resp *http.Response, message string, fields map[string]string) error {
	e := &apiError{method: method, path: path, status: resp.StatusCode, fields: map[string]string{}}
	e.text = clean(strings.TrimPrefix(resp.Status, strconv.Itoa(resp.StatusCode)))
	if message != "" {
		e.text = clean(message)
	}
	for name, text := range fields {
		if len(e.fields) < 20 {
			e.fields[clean(name)] = clean(text)
		}
	}
	switch {
	case resp.StatusCode == 595 || resp.StatusCode == 596 || resp.StatusCode == 599 || resp.StatusCode == http.StatusBadGateway || resp.StatusCode == http.StatusServiceUnavailable || resp.StatusCode == http.StatusGatewayTimeout:
		// Between the node that was asked and the one that was meant; it may have got there.
		return &lostError{method: method, path: path, err: e}
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		e.text = "a redirect, which is not followed; check that the url leads to Proxmox itself"
	}
	return e
}

// do sends a request that may be sent twice, until it is answered or its step's time is over.
func (c *client) do(ctx context.Context, method, path string, params url.Values, out any) error {
	_, err := c.doTotal(ctx, method, path, params, out)
	return err
}

func (c *client) doTotal(ctx context.Context, method, path string, params url.Values, out any) (int, error) {
	waits := retry.Between(c.scaled(500*time.Millisecond), c.scaled(8*time.Second))
	refused := false
	for tries := 1; ; tries++ {
		total, err := c.once(ctx, method, path, params, out)
		var api *apiError
		if errors.As(err, &api) && api.status == http.StatusUnauthorized && !refused && c.readToken() == nil {
			refused = true // the token may have been replaced
			continue
		}
		if err == nil || !transient(err) || tries == mostTries {
			return total, err
		}
		if !retry.Sleep(ctx, waits.NextBackOff()) {
			return 0, fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
	}
}

// mostTries bounds how often one request is sent.
const mostTries = 6

func (c *client) get(ctx context.Context, path string, params url.Values, out any) error {
	return c.do(ctx, http.MethodGet, path, params, out)
}

// scaled is a wait, shorter in tests.
func (c *client) scaled(d time.Duration) time.Duration { return time.Duration(float64(d) / c.pace) }

var passing = lazyregexp.New(`(?i)got timeout|VM is locked|storage .* (is )?busy|resource temporarily unavailable|no quorum|unable to activate storage|connection (timed out|refused|reset)|proxy handler failed|broken pipe|too many (connections|requests)`)

// transient reports whether another try is worth while.
func transient(err error) bool {
	var lost *lostError
	if errors.As(err, &lost) {
		var certificate *tls.CertificateVerificationError
		return !errors.As(err, &certificate) && !strings.Contains(err.Error(), "fingerprint")
	}
	var api *apiError
	return errors.As(err, &api) && api.status == http.StatusInternalServerError && passing.MatchString(api.text)
}

// missing reports whether the answer says that there is no such machine on that node.
func missing(err error) bool {
	var api *apiError
	return errors.As(err, &api) && api.status == http.StatusInternalServerError &&
		(strings.Contains(api.text, "unable to find configuration file for VM") || strings.Contains(api.text, "/qemu-server/") && strings.Contains(api.text, ".conf' does not exist"))
}

// says reports whether an answer that is no success has the text.
func says(err error, text string) bool {
	var api *apiError
	var task *taskError
	return errors.As(err, &api) && strings.Contains(api.text, text) || errors.As(err, &task) && strings.Contains(task.exit, text)
}

func status(err error, code int) bool {
	var api *apiError
	return errors.As(err, &api) && api.status == code
}

// number is a JSON number, or a text that is one, or a boolean: versions of Proxmox differ.
type number float64

// UnmarshalJSON reads it.
func (n *number) UnmarshalJSON(data []byte) error {
	text := strings.Trim(string(data), `"`)
	switch text {
	case "null", "", "false":
		*n = 0
		return nil
	case "true":
		*n = 1
		return nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f != f {
		return fmt.Errorf("%.40q is no number", text)
	}
	*n = number(f)
	return nil
}
