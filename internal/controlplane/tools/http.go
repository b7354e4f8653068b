package tools

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/person"
)

// Path is where a Site answers.
const Path = "/mcp"

// metadataPath is where a client finds out how to sign in (RFC 9728), also with Path after
// it.
const metadataPath = "/.well-known/oauth-protected-resource"

// SiteOptions say what a Site is part of.
type SiteOptions struct {
	// API answers REST to the person of a request's context.
	API http.Handler
	// PublicURL is how people reach this server, without a slash at its end; "": as each
	// request came.
	PublicURL string
	// Base is how the maker of a request reaches this server; nil: by PublicURL, or as
	// the request came.
	Base func(*http.Request) string
	// LocalHost is the host name of this server for browsers on this machine; "": none.
	LocalHost string
	// AuthorizationServers are where a client signs in; nil: this server.
	AuthorizationServers []string
	Version              string
	Log                  *slog.Logger
	CallsPerMinute       int // 0: DefaultCallsPerMinute
	// Record writes a call of a person's token into the audit of the organisation that they name;
	// "": none. Refused counts one there that was too many. nil: nothing is audited.
	Record  func(ctx context.Context, by person.Person, org string, made ToolCall) error
	Refused func(by person.Person, org string)
}

const (
	// mostSessions and mostOwnSessions bound the sessions of all tokens and of one.
	mostSessions, mostOwnSessions = 2000, 50
	// mostOwnRequests bounds what one token has open at once, streams among it.
	mostOwnRequests = 64
	// idleLimit ends a session of which nothing is heard.
	idleLimit = 30 * time.Minute
	// keepAlive is how long a stream may be silent.
	keepAlive = 15 * time.Second
	// writeLimit is how long a client may take for one message.
	writeLimit = time.Minute
)

// The version of the protocol since which each request stands for itself, without a session.
const withoutSessions = "2026-07-28"

// Site answers the protocol over HTTP, for the owners of API tokens. It is told who asks by
// package person.
type Site struct {
	SiteOptions
	server    *Server
	sessions  *mcp.StreamableHTTPHandler
	stateless *mcp.StreamableHTTPHandler

	mu     sync.Mutex
	owners map[string]string // session id → key of its token
	open   map[string]int    // key of a token → requests that are being answered
	ended  bool
	all    sync.WaitGroup
}

// NewSite makes what Mount adds to a server.
func NewSite(o SiteOptions) *Site {
	s := &Site{SiteOptions: o, owners: map[string]string{}, open: map[string]int{}}
	s.server = New(Options{Version: o.Version, Log: o.Log, CallsPerMinute: o.CallsPerMinute}, s.caller)
	// What these options would check is checked here before: hosts, origins, sizes.
	options := mcp.StreamableHTTPOptions{SessionTimeout: idleLimit, MaxRequestBodyBytes: MostMessage, DisableLocalhostProtection: true, PropagateRequestCancellation: true}
	theServer := func(*http.Request) *mcp.Server { return s.server.mcp }
	s.sessions = mcp.NewStreamableHTTPHandler(theServer, &options)
	options.Stateless = true
	s.stateless = mcp.NewStreamableHTTPHandler(theServer, &options)
	return s
}

// Mount adds the paths of a Site.
func (s *Site) Mount(mux *http.ServeMux) {
	mux.Handle(Path, s)
	mux.HandleFunc("GET "+metadataPath, s.metadata)
	mux.HandleFunc("GET "+metadataPath+Path, s.metadata)
}

// Close ends what goes on, waits for it, and admits no more.
func (s *Site) Close() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.server.Close()
	s.all.Wait()
	s.server.Close() // what began meanwhile
}

// base is how the maker of a request reaches this server.
func (s *Site) base(r *http.Request) string {
	switch {
	case s.Base != nil:
		return s.Base(r)
	case s.PublicURL != "":
		return s.PublicURL
	case r.TLS != nil:
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

// metadata says how to sign in.
func (s *Site) metadata(w http.ResponseWriter, r *http.Request) {
	base := s.base(r)
	servers := s.AuthorizationServers
	if servers == nil {
		servers = []string{base}
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Access-Control-Allow-Origin", "*") // it is the same for everybody, and no secret
	h.Set("Cross-Origin-Resource-Policy", "cross-origin")
	_ = json.NewEncoder(w).Encode(map[string]any{ // the client is gone: nobody to tell
		"resource": base + Path, "authorization_servers": servers, "bearer_methods_supported": []string{"header"}, "scopes_supported": []string{"tendril"}, "resource_name": "Tendril",
	})
}

// refuse answers a request that no session sees.
func refuse(w http.ResponseWriter, status int, message string) {
	refuseWith(w, status, -32600, message)
}

func refuseWith(w http.ResponseWriter, status, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{ // the client is gone: nobody to tell
		"jsonrpc": "2.0", "id": nil, "error": map[string]any{"code": code, "message": message},
	})
}

// ServeHTTP implements http.Handler.
func (s *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.mayCome(r) {
		refuse(w, http.StatusForbidden, "a page of another site, or under another host name, has made your browser send this; nothing was done")
		return
	}
	p, known := person.From(r.Context())
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !known || !p.Token || p.Browser || !strings.EqualFold(scheme, "Bearer") {
		w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer resource_metadata=%q", s.base(r)+metadataPath+Path))
		refuse(w, http.StatusUnauthorized, "an API token is needed as Authorization: Bearer; a session of a browser does not count here")
		return
	}
	key := keyOf(strings.TrimSpace(token))
	done, problem := s.enter(r, key)
	if problem != "" {
		w.Header().Set("Retry-After", "10")
		refuse(w, http.StatusTooManyRequests, problem)
		return
	}
	defer done(w)
	body, ok := readMessage(w, r)
	if !ok {
		return
	}

	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.server.alive, cancel)()
	r = r.Clone(ctx)
	r.Header.Set(baseHeader, s.base(r))
	r.Header.Set(orgHeader, r.URL.Query().Get("org"))
	r.Body = io.NopCloser(bytes.NewReader(body))
	w.Header().Set("X-Accel-Buffering", "no") // nginx
	stream := newPatient(w)
	defer stream.end()
	verify := func(context.Context, string, *http.Request) (*auth.TokenInfo, error) {
		// A session is its token's alone.
		return &auth.TokenInfo{UserID: key, Extra: map[string]any{cameAs: came{p, ctx}}}, nil
	}
	var next http.Handler = s.sessions
	if r.Header.Get("Mcp-Protocol-Version") >= withoutSessions {
		next = s.stateless
	}
	auth.RequireBearerToken(verify, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(next).ServeHTTP(stream, r)
}

// keyOf tells tokens apart without telling them.
func keyOf(token string) string {
	sum := sha256.Sum256([]byte("tools " + token))
	return hex.EncodeToString(sum[:16])
}

// mayCome reports whether a request comes from where it may: programs send no Origin, and
// our own pages ours. On the loopback a foreign host name means that a page has had its name
// point here, unless it is a proxy in front of a public server, which may call it anything.
func (s *Site) mayCome(r *http.Request) bool {
	public, err := url.Parse(s.PublicURL)
	proxied := err == nil && public.Host != "" && !isLoopback(public.Host)
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && isLoopback(local.String()) && !proxied && !isLoopback(r.Host) && !s.isOurs(r.Host) {
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	from, err := url.Parse(origin)
	if err != nil || from.Host == "" {
		return false
	}
	if s.PublicURL != "" {
		return origin == s.PublicURL || s.isOurs(from.Host) && isLoopback(r.Host)
	}
	return strings.EqualFold(from.Host, r.Host)
}

// isOurs reports whether a host is a name of this server.
func (s *Site) isOurs(host string) bool {
	if u, err := url.Parse(s.PublicURL); err == nil && s.PublicURL != "" && strings.EqualFold(host, u.Host) {
		return true
	}
	return s.LocalHost != "" && strings.EqualFold(withoutPort(host), s.LocalHost)
}

func withoutPort(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		return h
	}
	return strings.Trim(host, "[]")
}

func isLoopback(host string) bool {
	host = withoutPort(host)
	address, err := netip.ParseAddr(host)
	return err == nil && address.Unmap().IsLoopback() || strings.EqualFold(host, "localhost")
}

// enter counts a request and, if it begins one, a session. done must be called with the
// answer; a problem says why the request is not let in.
func (s *Site) enter(r *http.Request, key string) (done func(http.ResponseWriter), problem string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	begins := r.Method == http.MethodPost && r.Header.Get("Mcp-Session-Id") == "" && r.Header.Get("Mcp-Protocol-Version") < withoutSessions
	switch {
	case s.ended:
		return nil, "this server is stopping: try again in a moment"
	case s.open[key] >= mostOwnRequests:
		return nil, fmt.Sprintf("this token has %d requests open, which is the most: wait for some to end", mostOwnRequests)
	case begins:
		s.forget()
		own := 0
		for _, owner := range s.owners {
			if owner == key {
				own++
			}
		}
		if own >= mostOwnSessions || len(s.owners) >= mostSessions {
			return nil, fmt.Sprintf("too many sessions are open (%d of this token): end some with DELETE; an idle one ends after %d minutes", own, idleLimit/time.Minute)
		}
	}
	s.open[key]++
	s.all.Add(1)
	return func(w http.ResponseWriter) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if id := w.Header().Get("Mcp-Session-Id"); begins && id != "" {
			s.owners[id] = key
		}
		if s.open[key]--; s.open[key] == 0 {
			delete(s.open, key)
		}
		s.all.Done()
	}, ""
}

// forget leaves out the sessions that are over. s.mu must be held.
func (s *Site) forget() {
	alive := map[string]bool{}
	for session := range s.server.mcp.Sessions() {
		alive[session.ID()] = true
	}
	for id := range s.owners {
		if !alive[id] {
			delete(s.owners, id)
		}
	}
}

// Headers by which a request says inside of this process how it came.
const (
	baseHeader = "Tendril-Base"
	orgHeader  = "Tendril-Org"
)

// cameAs is where a request has who made it, and until when it lasts.
const cameAs = "came"

type came struct {
	person person.Person
	until  context.Context //nolint:containedctx // of the request that is being answered elsewhere
}

// caller is who has made a request. The API is asked for that very person in this process: a
// token that is for this resource alone would be nobody's there.
func (s *Site) caller(extra *mcp.RequestExtra) (Caller, error) {
	if extra == nil || extra.Header == nil || extra.TokenInfo == nil {
		return Caller{}, errors.New("nobody is known to ask: send an API token as Authorization: Bearer")
	}
	by, ok := extra.TokenInfo.Extra[cameAs].(came)
	if !ok {
		return Caller{}, errors.New("nobody is known to ask: send an API token as Authorization: Bearer")
	}
	api, err := client.New(client.Options{
		URL: extra.Header.Get(baseHeader), Org: extra.Header.Get(orgHeader), Version: s.Version, Transport: inProcess{s.API, by.person},
	})
	if err != nil {
		return Caller{}, err
	}
	org := extra.Header.Get(orgHeader)
	c := Caller{Client: api, Key: extra.TokenInfo.UserID, Until: by.until}
	if s.Record != nil {
		c.Record = func(ctx context.Context, made ToolCall) error { return s.Record(ctx, by.person, org, made) }
	}
	if s.Refused != nil {
		c.Refused = func() { s.Refused(by.person, org) }
	}
	if p := by.person.Powers; p != nil {
		c.CallsPerMinute = p.CallsPerMinute
	}
	return c, nil
}

// inProcess carries requests of a person to a handler in this process.
type inProcess struct {
	handler http.Handler
	person  person.Person
}

// RoundTrip implements http.RoundTripper. An answer is held in memory: those of REST are
// bounded.
func (t inProcess) RoundTrip(r *http.Request) (response *http.Response, err error) {
	asked := r.Clone(person.With(r.Context(), t.person))
	asked.RequestURI = r.URL.RequestURI()
	asked.Host = r.URL.Host
	asked.RemoteAddr = "127.0.0.1:0"
	if asked.Body == nil {
		asked.Body = http.NoBody
	}
	defer func() { _ = asked.Body.Close() }()
	w := &recorder{header: http.Header{}}
	defer func() {
		if failed := recover(); failed != nil {
			response, err = nil, fmt.Errorf("the request was broken off: %v", failed)
		}
	}()
	t.handler.ServeHTTP(w, asked)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return &http.Response{
		Status: strconv.Itoa(w.status) + " " + http.StatusText(w.status), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.header, Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()), Request: r,
	}, nil
}

// recorder keeps an answer.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}
}

func (w *recorder) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// mostDrained is how much is read of a message that is too large, so that its sender gets the
// answer and no broken connection.
const mostDrained = 32 << 20

// readMessage reads the body of a request, or answers it and returns false.
func readMessage(w http.ResponseWriter, r *http.Request) (body []byte, ok bool) {
	if r.Method != http.MethodPost {
		return nil, true
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, MostMessage+1))
	switch {
	case err != nil:
		refuse(w, http.StatusBadRequest, "the message did not arrive whole")
		return nil, false
	case len(body) > MostMessage:
		_, _ = io.CopyN(io.Discard, r.Body, mostDrained) // the answer is the same either way
		refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the message has more than %d bytes, which is the most: send less at once", MostMessage))
		return nil, false
	case !json.Valid(body):
		refuseWith(w, http.StatusBadRequest, -32700, "the message is not JSON")
		return nil, false
	}
	return body, true
}

// patient gives a client so much time for each message, where the server's own limits are
// for a whole answer. While a stream is silent it sends what keeps proxies from cutting it.
type patient struct {
	http.ResponseWriter
	rc      *http.ResponseController
	beat    *time.Timer
	ended   chan struct{}
	beating sync.WaitGroup

	mu     sync.Mutex
	stream bool // what is answered is a stream
}

func newPatient(w http.ResponseWriter) *patient {
	p := &patient{ResponseWriter: w, rc: http.NewResponseController(w), beat: time.NewTimer(keepAlive), ended: make(chan struct{})}
	// What is read from here on is whether the client is there. A recorder in a test has no
	// deadlines.
	_ = p.rc.SetReadDeadline(time.Time{})
	_ = p.rc.SetWriteDeadline(time.Time{})
	p.beating.Go(p.keepAlive)
	return p
}

// end is called before the handler returns: nothing is written after it.
func (p *patient) end() {
	close(p.ended)
	p.beat.Stop()
	p.beating.Wait()
}

func (p *patient) keepAlive() {
	for {
		select {
		case <-p.ended:
			return
		case <-p.beat.C:
		}
		p.mu.Lock()
		if p.stream {
			_ = p.send([]byte(": keep-alive\n\n")) // a client that is gone ends the request
			_ = p.rc.Flush()
		}
		p.beat.Reset(keepAlive)
		p.mu.Unlock()
	}
}

// send writes within the time for one message. p.mu must be held.
func (p *patient) send(data []byte) error {
	_ = p.rc.SetWriteDeadline(time.Now().Add(writeLimit))
	_, err := p.ResponseWriter.Write(data)
	_ = p.rc.SetWriteDeadline(time.Time{})
	return err
}

// Write implements http.ResponseWriter.
func (p *patient) Write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stream = strings.HasPrefix(p.Header().Get("Content-Type"), "text/event-stream")
	p.beat.Reset(keepAlive)
	if err := p.send(data); err != nil {
		return 0, err
	}
	return len(data), nil
}

// FlushError is for http.ResponseController.
func (p *patient) FlushError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rc.Flush()
}
