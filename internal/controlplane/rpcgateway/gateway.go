package rpcgateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/tendril-run/tendril/internal/controlplane/peer"
	"github.com/tendril-run/tendril/internal/pgurl"
	"github.com/tendril-run/tendril/internal/postgrest"
)

// Gateway is an http.Handler for all paths under /rest/v1/. Nothing may clean
// the path before it: what is odd about one is for the Gateway to refuse.
type Gateway struct {
	options   Options
	pool      *pgxpool.Pool
	catalogue *catalogue
	caller    *caller
	rates     *peer.Rates
	shares    *shares
	calls     *semaphore.Weighted
	bodies    *semaphore.Weighted
	listener  *listener
	waiting   *waiting
	refusals  *sampled
}

var _ http.Handler = (*Gateway)(nil)

// New makes a Gateway. It connects when first asked something, so a database
// that is away is not an error yet.
func New(ctx context.Context, o Options) (*Gateway, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	pool, err := openPool(ctx, o)
	if err != nil {
		return nil, err
	}
	g := &Gateway{
		options: o, pool: pool, rates: peer.NewRates(o.Rate, int(2*o.Rate)), shares: newShares(o),
		refusals: newSampled(), waiting: newWaiting(o.MaxHeld),
		catalogue: &catalogue{pool: pool, names: o.Functions},
		calls:     semaphore.NewWeighted(int64(o.MaxCalls)),
		bodies:    semaphore.NewWeighted(max(bodyBudget, o.MaxBody)),
	}
	g.caller = &caller{
		pool: pool, statementLimit: o.StatementTimeout,
		limits: [][]byte{milliseconds(o.StatementTimeout), milliseconds(o.LockTimeout)},
	}
	g.listener = startListener(pool, o.DatabaseURLNow, silence, g.catalogue.changed, g.waiting)
	return g, nil
}

func milliseconds(d time.Duration) []byte {
	return strconv.AppendInt(nil, max(1, d.Milliseconds()), 10)
}

// Close ends all connections to the database, once the calls under way are
// answered. No request may begin after it.
func (g *Gateway) Close() {
	g.EndHeld()
	g.listener.stop()
	g.pool.Close()
}

// ServeHTTP implements http.Handler.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	address := peer.Address(r, g.options.TrustedProxies)
	asked := &asked{ResponseWriter: w}
	function, no := g.serve(asked, r, address)
	if no != nil {
		no.write(asked)
	}
	duration := time.Since(began) - asked.held
	g.log(r, asked.status, function, address.String(), duration, no)
	if g.options.Called != nil {
		g.options.Called(strings.TrimPrefix(function, unknown), asked.status, duration)
	}
}

// Stat says how its connections are used.
func (g *Gateway) Stat() *pgxpool.Stat { return g.pool.Stat() }

// log tells of a request, but not of what was in it: its body has the agent's
// token hash, its path and query what anybody cares to write there.
func (g *Gateway) log(r *http.Request, status int, function, address string, took time.Duration, no *refusal) {
	attrs := []slog.Attr{
		slog.String("function", function), slog.Int("status", status),
		slog.Duration("duration", took.Round(10*time.Microsecond)), slog.String("address", address),
	}
	level := slog.LevelInfo
	switch {
	case no == nil && !g.options.LogAll:
		return
	case no != nil && no.cause != nil:
		level = slog.LevelError
		attrs = append(attrs, slog.Any("error", no.cause))
	case status >= http.StatusInternalServerError:
		level = slog.LevelWarn
	case status == http.StatusTooManyRequests:
		level = slog.LevelDebug // they are many by their nature
	}
	if no != nil {
		attrs = append(attrs, slog.String("code", no.code()))
	}
	if !g.options.LogAll {
		leftOut, told := g.refusals.tell(level)
		if !told {
			return
		}
		if leftOut > 0 {
			attrs = append(attrs, slog.Int64("left_out", leftOut))
		}
	}
	g.options.Log.LogAttrs(r.Context(), level, "call", attrs...)
}

// asked remembers what was answered.
type asked struct {
	http.ResponseWriter
	status int
	held   time.Duration // how long nothing was done
}

// WriteHeader implements http.ResponseWriter.
func (a *asked) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (a *asked) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// Defaults of Options.
const (
	// DefaultMaxConns leaves two of 16 connections, to the listener and to what
	// trellis does on a timer.
	DefaultMaxConns         = 14
	DefaultMaxBody          = 8 << 20 // 1 MiB of log, each byte of it escaped, and what is around it
	DefaultMaxCalls         = 256
	DefaultMaxHeld          = 20_000
	DefaultStatementTimeout = 5 * time.Second
	DefaultLockTimeout      = 2 * time.Second
	DefaultRate             = 300
)

// bodyBudget is how many bytes of request bodies may be held at once.
const bodyBudget = 256 << 20

// Options say how to serve.
type Options struct {
	// DatabaseURL connects as a role that may act as anon.
	DatabaseURL string
	// DatabaseURLNow is asked for it again before each connection; nil: it stays.
	DatabaseURLNow pgurl.Source
	// Functions are the only ones served; nil: those of an agent.
	Functions []string
	// MaxConns bounds the connections to the database, whatever the number of
	// agents, besides the one that listens.
	MaxConns int
	MaxBody  int64
	// MaxCalls bounds the calls under way; further ones are asked to come back.
	MaxCalls int
	// MaxHeld bounds the calls that wait until there is something to tell, half of them for
	// one address; further ones are answered at once. Each takes some 20 KB with its connection.
	MaxHeld int
	// StatementTimeout and LockTimeout bound each call in the database.
	StatementTimeout, LockTimeout time.Duration
	// Rate is how many requests a second one address may make, in bursts of
	// twice as many. Negative: any number.
	Rate float64
	// TrustedProxies are believed what they say in X-Forwarded-For.
	TrustedProxies []netip.Prefix
	// Authorities are the hosts, with ports, for which requests may be signed; nil: whichever
	// host a request names, so that one that was signed for another server is taken too.
	Authorities []string
	// APIKey must be sent where it is set. It is public in the sense that each
	// agent has it, and no substitute for the agent's token.
	APIKey string
	Log    *slog.Logger
	// LogAll logs calls that succeeded as well.
	LogAll bool
	// Called, if set, runs after each answered call; function is "" if the gateway does not
	// serve it.
	Called func(function string, status int, took time.Duration)
}

// agentFunctions are what an agent may call.
func agentFunctions() []string {
	return []string{
		"check_agent", "register_agent", "agent_heartbeat", "fetch_next_provision",
		"insert_provision_log", "update_provision_status", "fail_orphaned_provisions",
		"put_blob", "get_blob", "lease_checks", "report_checks",
		"report_pools", "reserve_machines", "release_machines", "rotate_agent_key", pendingFunction,
		"agent_key", "share_identity", "shared_identity", "claim_trace", "delegate_claim", "renew_claim",
		joinFunction, "join_status",
	}
}

func (o Options) complete() (Options, error) {
	if o.DatabaseURL == "" || o.Log == nil {
		return o, errors.New("rpcgateway: DatabaseURL and Log are required")
	}
	if o.Functions == nil {
		o.Functions = agentFunctions()
	}
	o.MaxConns = cmp.Or(o.MaxConns, DefaultMaxConns)
	o.MaxBody = cmp.Or(o.MaxBody, DefaultMaxBody)
	o.MaxCalls = cmp.Or(o.MaxCalls, DefaultMaxCalls)
	o.MaxHeld = cmp.Or(o.MaxHeld, DefaultMaxHeld)
	o.StatementTimeout = cmp.Or(o.StatementTimeout, DefaultStatementTimeout)
	o.LockTimeout = cmp.Or(o.LockTimeout, DefaultLockTimeout)
	o.Rate = cmp.Or(o.Rate, DefaultRate)
	return o, nil
}

// unknown stands in the log for what is none of the functions served.
const unknown = "-"

// serve takes a request through all steps. It has written the answer if it
// returns no refusal. The name is for the log.
func (g *Gateway) serve(w *asked, r *http.Request, address netip.Addr) (name string, no *refusal) {
	name = unknown
	if wait, ok := g.rates.Allow(address); !ok {
		return name, tooMany(wait)
	}
	if no := g.checkKey(r.Header); no != nil {
		return name, no
	}
	if key, is := pendingOf(r.URL.Path); is {
		return g.pending(w, r, address, key)
	}
	function, isCall := postgrest.FunctionOf(r.URL.Path)
	if !isCall {
		return name, noPlace(r.URL.Path)
	}
	if slices.Contains(g.options.Functions, function) {
		name = function
	}
	if no := checkMethod(r.Method, function, name != unknown); no != nil {
		return name, no
	}
	if r.Method == http.MethodOptions {
		w.Header().Set("Allow", allowed)
		w.WriteHeader(http.StatusOK)
		return name, nil
	}
	if no := checkRequest(r, function); no != nil {
		return name, no
	}
	preferred, no := preferencesOf(r.Header)
	if no != nil {
		return name, no
	}
	share, leave := g.shares.of(address)
	defer leave()
	body, done, no := g.readBody(w, r, share)
	defer done()
	if no != nil {
		return name, no
	}
	r, no = g.verified(r, body, address)
	if no != nil {
		return name, no
	}
	fields, no := parseArguments(body)
	if no != nil {
		return name, no
	}
	if function == joinFunction {
		if r, no = g.withAccount(r, share, fields); no != nil {
			return name, no
		}
	}
	return name, g.answer(w, r, share, function, fields, preferred)
}

// answer calls the function and writes what it answers. While that is written
// the call is over: a client that reads slowly holds nothing that others need.
func (g *Gateway) answer(w *asked, r *http.Request, share *share, function string, fields map[string]json.RawMessage, preferred preferences) *refusal {
	end, no := g.callOrHold(r, share, preferred.wait, func(repeat bool) (answered, *refusal) {
		return g.callInTurn(r, share, function, fields, preferred.wait > 0, repeat)
	})
	w.held = end.held
	if no != nil {
		return no
	}
	if end.stopping {
		stayAway(w.Header())
	}
	if !end.kept || end.stopping {
		preferred.wait = 0
	}
	preferred.apply(w.Header(), end.answer.rows)
	if end.answer.json == nil {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	w.Header().Set("Content-Type", postgrest.AnswerContentType)
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(end.answer.json) // JSON that the database wrote; a client that is gone is not told
	return nil
}

// callInTurn is call within the bounds of calls at once. Beyond them a call waits for its turn, for
// a fleet that comes back at once is served sooner so than by refusals that it repeats; those that
// wait are as many as may be held. A repeat of a held call is one of them.
func (g *Gateway) callInTurn(r *http.Request, share *share, function string, fields map[string]json.RawMessage, asksHold, repeat bool) (answered, *refusal) {
	ctx, cancel := context.WithTimeout(r.Context(), acquireLimit)
	defer cancel()
	turn := func(calls *semaphore.Weighted) bool {
		if calls.TryAcquire(1) {
			return true
		}
		if !repeat {
			if !share.held.TryAcquire(1) {
				return false
			}
			defer share.held.Release(1)
			if !g.waiting.limit.TryAcquire(1) {
				return false
			}
			defer g.waiting.limit.Release(1)
		}
		return calls.Acquire(ctx, 1) == nil
	}
	if repeat {
		r = r.WithContext(repeated(r.Context()))
	}
	if !turn(share.calls) {
		return answered{}, sqlRefusal("PT503", "too many calls at once from one address", "busy", "try again")
	}
	defer share.calls.Release(1)
	if !turn(g.calls) {
		return answered{}, sqlRefusal("PT503", "too many calls at once", "busy", "try again")
	}
	defer g.calls.Release(1)
	answer, no := g.call(r, share, function, fields, asksHold)
	if no != nil && no.code() == undefinedFunction {
		// It was changed a moment ago, and the notice is still on its way.
		g.catalogue.changed()
		answer, no = g.call(r, share, function, fields, asksHold)
	}
	return answer, no
}

const undefinedFunction = "42883"

func (g *Gateway) call(r *http.Request, share *share, function string, fields map[string]json.RawMessage, asksHold bool) (answered, *refusal) {
	f, no := g.catalogue.find(r.Context(), function, names(fields))
	if no != nil {
		return answered{}, no
	}
	return g.caller.call(r.Context(), share.conns, f, fields, asksHold)
}

// noPlace tells of a path that calls nothing, in PostgREST's words.
func noPlace(path string) *refusal {
	no := &refusal{status: http.StatusNotFound}
	rest, under := strings.CutPrefix(path, "/rest/v1/")
	switch {
	case under && rest == "", path == "/rest/v1":
		no.body = postgrest.NewError(postgrest.CodeNoRoot, "Root endpoint metadata is disabled", "", "")
	case under && !strings.Contains(rest, "/"):
		no.body = postgrest.NewError(postgrest.CodeNoTable,
			"Could not find the table '"+postgrest.Schema+"."+shortened(rest)+"' in the schema cache", "", "")
	default:
		no.body = postgrest.NewError(postgrest.CodeBadPath, "Invalid path specified in request URL", "", "")
	}
	return no
}

// allowed is what a function can be asked by here.
const allowed = "OPTIONS,POST"

func checkMethod(method, function string, known bool) *refusal {
	no := &refusal{status: http.StatusMethodNotAllowed, header: map[string]string{"Allow": allowed}}
	switch method {
	case http.MethodPost:
		return nil
	case http.MethodOptions:
		if known {
			return nil
		}
		return noFunction(function, nil, "")
	case http.MethodGet, http.MethodHead:
		if !known {
			return noFunction(function, nil, "")
		}
		// PostgREST calls in a read-only transaction then, with what is in the
		// query, and refuses what changes something in these words. A token hash
		// does not belong into a query, so what only reads is refused as well.
		no.body = postgrest.NewError("25006", "cannot execute "+function+" in a read-only transaction", "", "use POST")
	default:
		no.body = postgrest.NewError(postgrest.CodeBadMethod, "Cannot use the "+shortened(method)+" method on RPC", "", "")
	}
	return no
}

// checkRequest refuses what is odd about a POST besides its body.
func checkRequest(r *http.Request, function string) *refusal {
	if r.URL.RawQuery != "" {
		return badRequest(postgrest.CodeBadQuery, "Query parameters are not taken; arguments belong into the body")
	}
	if profile := r.Header.Get(postgrest.ContentProfile); profile != "" && profile != postgrest.Schema {
		return &refusal{status: http.StatusNotAcceptable, body: postgrest.NewError(postgrest.CodeNoSuchProfile,
			"Invalid schema: "+shortened(profile), "", "Only the following schemas are exposed: "+postgrest.Schema)}
	}
	if accept := strings.Join(r.Header.Values("Accept"), ", "); accept != "" && !acceptsJSON(accept) {
		return &refusal{status: http.StatusNotAcceptable, body: postgrest.NewError(postgrest.CodeNotAcceptable,
			"None of these media types are available: "+shortened(accept), "", "")}
	}
	sent := r.Header.Get("Content-Type")
	kind, _, err := mime.ParseMediaType(sent)
	switch {
	case sent == "", err == nil && kind == postgrest.ContentType:
		return nil
	case kind == "text/plain":
		return noRawFunction(function, "text")
	case kind == "text/xml":
		return noRawFunction(function, "xml")
	case kind == "application/octet-stream":
		return noRawFunction(function, "bytea")
	}
	return badRequest(postgrest.CodeBadBody, "Content-Type not acceptable: "+shortened(sent))
}

func acceptsJSON(accept string) bool {
	for one := range strings.SplitSeq(accept, ",") {
		kind, more, err := mime.ParseMediaType(one)
		if err == nil && more["nulls"] == "" && slices.Contains([]string{postgrest.ContentType, "application/vnd.pgrst.array+json", "application/*", "*/*"}, kind) {
			return true
		}
	}
	return false
}

// keyError is what Supabase's front door says of keys; it has no code.
type keyError struct {
	Message string `json:"message"`
	Hint    string `json:"hint"`
}

// checkKey asks for the API key where there is one. Without, clients may send
// what they like.
func (g *Gateway) checkKey(header http.Header) *refusal {
	want := g.options.APIKey
	if want == "" {
		return nil
	}
	got := header.Get(postgrest.APIKey)
	switch {
	case got == "":
		return unauthorized("No API key found in request", "No `apikey` request header was found.")
	case subtle.ConstantTimeCompare([]byte(got), []byte(want)) != 1:
		return unauthorized("Invalid API key", "Double check the API key of this server.")
	}
	return nil
}

func unauthorized(message, hint string) *refusal {
	return &refusal{status: http.StatusUnauthorized, body: keyError{message, hint}}
}

// preferences are those of the header Prefer that the gateway honours. It ignores all
// others, but refuses them under handling=strict: a client that limits the rows that
// may change (max-affected) must not believe that the limit holds.
type preferences struct {
	exact    bool
	handling string // "" if the request does not say
	// wait is how long the answer may be held back until there is something to tell.
	wait time.Duration
}

const (
	preferExact   = "count=exact"
	preferStrict  = "handling=strict"
	preferLenient = "handling=lenient"
	preferWait    = "wait=" // seconds
)

func preferencesOf(header http.Header) (preferences, *refusal) {
	var p preferences
	var others []string
	for one := range strings.SplitSeq(strings.Join(header.Values("Prefer"), ","), ",") {
		switch one = strings.TrimSpace(one); {
		case one == preferExact:
			p.exact = true
		case (one == preferStrict || one == preferLenient) && p.handling == "":
			p.handling = one
		case p.wait == 0 && waitOf(one) > 0:
			p.wait = waitOf(one)
		case one != "" && len(others) < maxNames:
			others = append(others, shortened(one))
		}
	}
	if p.handling == preferStrict && len(others) > 0 {
		return p, &refusal{status: http.StatusBadRequest, body: postgrest.NewError(postgrest.CodeBadPreference,
			"Invalid preferences given with handling=strict", "Invalid preferences: "+strings.Join(others, ", "), "")}
	}
	return p, nil
}

// waitOf reads how long a request prefers to wait; 0: it does not say, or not in seconds.
func waitOf(preference string) time.Duration {
	text, says := strings.CutPrefix(preference, preferWait)
	seconds, err := strconv.ParseUint(text, 10, 16)
	if !says || err != nil {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// apply writes which preferences were honoured, and which rows the answer has: all of them.
func (p preferences) apply(header http.Header, rows int) {
	which, count := "*", "*"
	if rows > 0 {
		which = fmt.Sprintf("0-%d", rows-1)
	}
	var honoured []string
	if p.exact {
		count = fmt.Sprint(rows)
		honoured = append(honoured, preferExact)
	}
	if p.handling != "" {
		honoured = append(honoured, p.handling)
	}
	if p.wait > 0 {
		honoured = append(honoured, preferWait+strconv.Itoa(int(min(p.wait, longestWait).Seconds())))
	}
	header.Set("Content-Range", which+"/"+count)
	if len(honoured) > 0 {
		header.Set("Preference-Applied", strings.Join(honoured, ", "))
	}
}

// bodyShare is the part of the budget for bodies that one address may hold:
// otherwise a client that sends large ones slowly would block all others.
const bodyShare = 4

// shares is what each address holds of what all share: half of it at most, so
// that one whose calls are slow, be it for locks of its own, leaves the others
// something. Calls of one address wait for each other, not for a connection.
type shares struct {
	conns, calls, bytes, waits int64 // the most of one address

	mu   sync.Mutex
	held map[netip.Prefix]*share
}

// share is that of one address.
type share struct {
	conns, calls, bytes, held *semaphore.Weighted
	requests                  int // under way
}

func newShares(o Options) *shares {
	return &shares{
		conns: half(o.MaxConns), calls: half(o.MaxCalls), bytes: max(bodyBudget/bodyShare, o.MaxBody), waits: half(o.MaxHeld),
		held: map[netip.Prefix]*share{},
	}
}

func half(n int) int64 { return int64(n+1) / 2 }

// of returns an address's share. It is remembered until done is called, for each
// request that has it.
func (s *shares) of(address netip.Addr) (one *share, done func()) {
	network := peer.Network(address)
	s.mu.Lock()
	defer s.mu.Unlock()
	one = s.held[network]
	if one == nil {
		one = &share{conns: semaphore.NewWeighted(s.conns), calls: semaphore.NewWeighted(s.calls), bytes: semaphore.NewWeighted(s.bytes), held: semaphore.NewWeighted(s.waits)}
		s.held[network] = one
	}
	one.requests++
	return one, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if one.requests--; one.requests == 0 {
			delete(s.held, network)
		}
	}
}

// How many refused calls the log tells of: so many a second, and more of those
// that come at once after a while without. Who scans for functions or has a token that was revoked is not to
// fill a disk, nor all agents together while the database is away.
const toldPerSecond, toldAtOnce = 5, 50

// sampled leaves out lines where there are too many. What clients do wrong is
// counted apart from what goes wrong here, which it must not hide.
type sampled struct{ theirs, ours lines }

type lines struct {
	limit   *rate.Limiter
	leftOut atomic.Int64
}

func newSampled() *sampled {
	s := &sampled{}
	for _, l := range []*lines{&s.theirs, &s.ours} {
		l.limit = rate.NewLimiter(toldPerSecond, toldAtOnce)
	}
	return s
}

// tell reports whether a line is to be written, and how many were left out
// before it.
func (s *sampled) tell(level slog.Level) (leftOut int64, told bool) {
	l := &s.theirs
	switch {
	case level < slog.LevelInfo:
		return 0, true
	case level > slog.LevelInfo:
		l = &s.ours
	}
	if !l.limit.Allow() {
		l.leftOut.Add(1)
		return 0, false
	}
	return l.leftOut.Swap(0), true
}

// readBody reads a request's body. Bodies are held in memory: done gives up
// what this one was counted for.
func (g *Gateway) readBody(w http.ResponseWriter, r *http.Request, share *share) (body []byte, done func(), no *refusal) {
	counted := &countedReader{from: http.MaxBytesReader(w, r.Body, g.options.MaxBody), budgets: [2]*semaphore.Weighted{share.bytes, g.bodies}}
	done = counted.giveUp
	if r.ContentLength > g.options.MaxBody {
		return nil, done, tooLarge(g.options.MaxBody)
	}
	var read bytes.Buffer
	_, err := read.ReadFrom(counted)
	_, large := errors.AsType[*http.MaxBytesError](err)
	switch {
	case large:
		return nil, done, tooLarge(g.options.MaxBody)
	case errors.Is(err, errBudget):
		return nil, done, sqlRefusal("PT503", "too many bytes under way at once", "busy", "try again")
	case err != nil:
		// It came too slowly, or not all of it: usually nobody is left to tell.
		return nil, done, &refusal{status: http.StatusRequestTimeout, body: postgrest.NewError("PT408", "the request did not arrive", "body_incomplete", "try again")}
	}
	return read.Bytes(), done, nil
}

func tooLarge(limit int64) *refusal {
	return &refusal{status: http.StatusRequestEntityTooLarge, header: map[string]string{"Connection": "close"},
		body: postgrest.NewError("PT413", fmt.Sprintf("the request has more than the %d bytes allowed", limit), postgrest.BodyTooLarge,
			"have trellis serve take larger ones: --max-body")}
}

var errBudget = errors.New("the budget for bodies is used up")

// countedReader counts what it reads against budgets, as it comes: who only
// announces a large body holds nothing.
type countedReader struct {
	from    io.Reader
	budgets [2]*semaphore.Weighted // its address's, and that of all
	held    int64
}

// Read implements io.Reader.
func (c *countedReader) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	if n > 0 {
		if !c.budgets[0].TryAcquire(int64(n)) {
			return 0, errBudget
		}
		if !c.budgets[1].TryAcquire(int64(n)) {
			c.budgets[0].Release(int64(n))
			return 0, errBudget
		}
		c.held += int64(n)
	}
	return n, err
}

func (c *countedReader) giveUp() {
	for _, budget := range c.budgets {
		budget.Release(c.held)
	}
}
