// Package api is the REST API below /api/v1, for programs: typed operations
// from which its OpenAPI document is generated. Each request runs as its person
// in the database (package store), which decides what they see and do; a refusal
// becomes a problem document (RFC 9457).
//
// It must not know pages, nor how it was found out who asks.
//
// Lists go by keys of an index, and a filtered list looks through 5,000 rows a page
// at most. An Idempotency-Key is locked in the transaction that does the work, and
// the answer is kept for a day unless it holds a secret. GETs are compressed; what
// tells secrets or repeats the request is not, because its compressed length would
// tell of them (BREACH).
package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/live"
	"github.com/tendril-run/tendril/internal/controlplane/notify"
	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
)

// Config is what the API needs of the process it runs in.
type Config struct {
	Database *store.Database
	Live     *live.Hub
	Notifier *notify.Notifier
	Version  string
	Log      *slog.Logger
	// ServerWait is how long the provisioning of a server waits for its agent; 0: 10 seconds.
	ServerWait time.Duration
}

// api is what the operations share.
type api struct {
	Config
}

// API answers everything below /api/.
type API struct {
	handler  http.Handler
	document *huma.OpenAPI
}

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.handler.ServeHTTP(w, r) }

// Read has a function read the OpenAPI document, before anything is served.
func (a *API) Read(read func(*huma.OpenAPI)) { whole(a.document, read) }

// New makes the API of a control plane.
func New(c Config) *API {
	mux := http.NewServeMux()
	h := humago.New(mux, configuration(c.Version))
	h.UseMiddleware(signedIn(h), bounded(h))
	a := &api{Config: c}

	a.me(h)
	a.provisions(h)
	a.provisionParts(h)
	a.sealed(h)
	a.decisions(h)
	a.workspaces(h)
	a.inventory(h)
	a.machines(h)
	a.plans(h)
	a.pools(h)
	a.places(h)
	a.quotas(h)
	a.servers(h)
	a.drift(h)
	a.locks(h)
	a.clusters(h)
	a.agents(h)
	a.joins(h)
	a.templates(h)
	a.variables(h)
	a.members(h)
	a.logs(h)
	a.events(h)
	a.webhooks(h)
	a.apiTokens(h)
	a.invitations(h)

	serveDocument(mux, h.OpenAPI())
	return &API{handler: routed(mux, c.Log), document: h.OpenAPI()}
}

// as returns the store of the request's person, whom the middleware has seen.
func (a *api) as(ctx context.Context) *store.Store {
	p, _ := person.From(ctx)
	return a.Database.As(p.ID)
}

// ref is what a request names something by.
type ref[X any] interface {
	find(context.Context, *store.Store) (X, error)
}

// about finds what a request names and asks something about it, in one transaction.
func about[X, T any](ctx context.Context, a *api, in ref[X], doing string, ask func(context.Context, *store.Store, X) (T, error)) (found T, err error) {
	err = a.as(ctx).Within(ctx, doing, func(ctx context.Context, s *store.Store) error {
		one, err := in.find(ctx, s)
		if err == nil {
			found, err = ask(ctx, s, one)
		}
		return err
	})
	return found, err
}

// nothing is about for what answers nothing.
func nothing[X any](ctx context.Context, a *api, in ref[X], doing string, do func(context.Context, *store.Store, X) error) (*struct{}, error) {
	return about(ctx, a, in, doing, func(ctx context.Context, s *store.Store, one X) (*struct{}, error) { return nil, do(ctx, s, one) })
}

func itself[X any](_ context.Context, _ *store.Store, one X) (X, error) { return one, nil }

// answer is what an operation answers that reads one thing.
type answer[T any] struct{ Body T }

func body[R, T any](to func(R) T, found R, err error) (*answer[T], error) {
	return &answer[T]{to(found)}, err
}

// told is what is asked about what a request names, translated.
func told[X, R, T any](ctx context.Context, a *api, to func(R) T, in ref[X], doing string, ask func(context.Context, *store.Store, X) (R, error)) (*answer[T], error) {
	found, err := about(ctx, a, in, doing, ask)
	return body(to, found, err)
}

// given is the body of a request that may come without one.
func given[B any](body *B) (b B) {
	if body != nil {
		b = *body
	}
	return b
}

// OrgParam says which organisation, where it is not clear.
type OrgParam struct {
	Org string `query:"org" maxLength:"200" doc:"The organisation, by its id or name. Only needed by who belongs to several." example:"acme"`
}

func (o OrgParam) find(ctx context.Context, s *store.Store) (store.Org, error) {
	return s.FindOrg(ctx, o.Org)
}

// org is the id of the organisation that a ref is looked for in: uuid.Nil, all
// that the person belongs to, unless one is named.
func (o OrgParam) org(ctx context.Context, s *store.Store) (uuid.UUID, error) {
	if o.Org == "" {
		return uuid.Nil, nil
	}
	org, err := s.FindOrg(ctx, o.Org)
	return org.ID, err
}

// prefix is before the paths of all operations.
const prefix = "/api/v1"

const (
	// requestLimit bounds a request from its header to its answer.
	requestLimit = 30 * time.Second
	// bodyLimit bounds what a body of JSON may have: a snapshot has 256 KiB at
	// most.
	bodyLimit = 1 << 20
	// readLimit bounds how long a body may take to arrive.
	readLimit = 10 * time.Second
)

// streams marks an operation that answers for as long as its client listens, in
// a media type of its own.
const streams = "streams"

// add registers an operation for people who are signed in. Its path is below the
// prefix; what it returns as an error is answered as a Problem.
func add[I, O any](a *api, h huma.API, op huma.Operation, do func(context.Context, *I) (*O, error)) {
	op.Path = prefix + op.Path
	op.Errors = slices.Compact(slices.Sorted(slices.Values(append(op.Errors, a.errorsOf(op)...))))
	if op.MaxBodyBytes == 0 {
		op.MaxBodyBytes = bodyLimit
	}
	if op.BodyReadTimeout == 0 {
		op.BodyReadTimeout = readLimit
	}
	huma.Register(h, op, func(ctx context.Context, input *I) (*O, error) {
		answer, err := do(ctx, input)
		if err != nil {
			return nil, a.problem(ctx, op.OperationID, err)
		}
		return answer, nil
	})
}

// errorsOf are the statuses that any operation of its kind may answer.
func (a *api) errorsOf(op huma.Operation) []int {
	found := []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusNotAcceptable, http.StatusUnprocessableEntity,
		http.StatusTooManyRequests, http.StatusServiceUnavailable}
	if op.Method != http.MethodGet {
		found = append(found, http.StatusConflict, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	}
	return found
}

// signedIn lets nobody else pass.
func signedIn(h huma.API) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		if _, ok := person.From(ctx.Context()); !ok {
			ctx.SetHeader("WWW-Authenticate", `Bearer realm="tendril"`)
			_ = huma.WriteErr(h, ctx, http.StatusUnauthorized, "nobody is signed in") // the client is gone: nobody to tell
			return
		}
		next(ctx)
	}
}

// bounded ends requests that take too long, and refuses those whose answer the
// client would not take before anything is done.
func bounded(h huma.API) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		if ctx.Operation().Metadata[streams] != nil {
			next(ctx)
			return
		}
		if !acceptsJSON(ctx.Header("Accept")) {
			_ = huma.WriteErr(h, ctx, http.StatusNotAcceptable, "not acceptable")
			return
		}
		limited, cancel := context.WithTimeout(ctx.Context(), requestLimit)
		defer cancel()
		next(huma.WithContext(ctx, limited))
	}
}

// acceptsJSON reports whether a client with that Accept header takes our answers.
func acceptsJSON(accept string) bool {
	if strings.TrimSpace(accept) == "" {
		return true
	}
	for part := range strings.SplitSeq(accept, ",") {
		kind, parameters, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		switch kind {
		case "*/*", "application/*", "application/json", problemType:
			if q, err := strconv.ParseFloat(cmp.Or(parameters["q"], "1"), 64); err == nil && q > 0 {
				return true
			}
		}
	}
	return false
}

// routed answers as problems also what no operation answers: paths and methods
// that there are not, and panics. Nothing is kept in caches, and no foreign page
// is invited (no CORS).
func routed(mux *http.ServeMux, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		defer func() {
			failed := recover()
			if failed == nil {
				return
			}
			if err, ok := failed.(error); ok && errors.Is(err, http.ErrAbortHandler) || r.Context().Err() != nil {
				panic(http.ErrAbortHandler) // the client is gone
			}
			p := newProblem(http.StatusInternalServerError, "internal", "something went wrong that is not the request's fault", "")
			p.Instance = "urn:uuid:" + uuid.NewString()
			log.Error("a request failed", "path", r.URL.Path, "instance", p.Instance, "error", failed)
			writeProblem(w, p)
		}()
		if p := ambiguous(r); p != nil {
			writeProblem(w, p)
			return
		}
		handler, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		// The mux knows which methods there are; what it says of it is plain text.
		var said unanswered
		handler.ServeHTTP(&said, r)
		allow := said.Header().Get("Allow")
		switch {
		case allow == "":
			writeProblem(w, newProblem(http.StatusNotFound, "no_such_path", "there is nothing at "+r.URL.Path, "all that there is stands in "+prefix+"/docs"))
		case r.Method == http.MethodOptions:
			w.Header().Set("Allow", allow+", OPTIONS")
			w.WriteHeader(http.StatusNoContent)
		default:
			w.Header().Set("Allow", allow)
			writeProblem(w, newProblem(http.StatusMethodNotAllowed, "method_not_allowed", r.Method+" is not for "+r.URL.Path, "there is "+allow))
		}
	})
}

// ambiguous refuses what would be left out without a word: a query that cannot be
// read, and the second of what there may be one of. A proxy may have looked at it.
func ambiguous(r *http.Request) *Problem {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return fault(http.StatusBadRequest, "malformed_request", "query", "it is not name=value&name=value with %XX", "")
	}
	const twice = "given more than once"
	for name, values := range query {
		if len(values) > 1 {
			return fault(http.StatusUnprocessableEntity, "invalid_request", "query."+name, twice, "")
		}
	}
	for _, name := range []string{"Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"} {
		if len(r.Header.Values(name)) > 1 {
			return fault(http.StatusBadRequest, "malformed_request", "header."+name, twice, "")
		}
	}
	return nil
}

func writeProblem(w http.ResponseWriter, p *Problem) {
	w.Header().Set("Content-Type", problemType)
	if p.retryAfter != "" {
		w.Header().Set("Retry-After", p.retryAfter)
	}
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the client is gone: nobody to tell
}

// unanswered takes an answer that nobody is given.
type unanswered struct{ header http.Header }

func (u *unanswered) Header() http.Header {
	if u.header == nil {
		u.header = http.Header{}
	}
	return u.header
}
func (u *unanswered) Write(p []byte) (int, error) { return len(p), nil }
func (u *unanswered) WriteHeader(int)             {}

// Keyed is the header by which a request can be sent twice and carried out once.
type Keyed struct {
	IdempotencyKey string `header:"Idempotency-Key" json:"-" maxLength:"200" pattern:"^[!-~]*$" patternDescription:"visible ASCII characters" doc:"A word of your own, new for each request, such as a UUID. The same request with the same key within 24 hours is not carried out again: it is answered as the first one was." example:"7c9e6679-7425-40de-944b-e07fc1f90ae7"`
}

func (k Keyed) key() string { return k.IdempotencyKey }

// keyed is the input of an operation that makes something.
type keyed interface{ key() string }

// made is its answer.
type made[T any] struct {
	Location string `header:"Location" doc:"Where what was made can be read." example:"/api/v1/provisions/42"`
	Replayed string `header:"Idempotency-Replayed" doc:"true when this request was carried out before, and this is what it was answered then." example:"true"`
	Body     T
}

// once registers an operation that makes something: in one transaction, and with
// an Idempotency-Key once only. do returns where the new thing is, and the answer.
func once[I keyed, T any](a *api, h huma.API, op huma.Operation, do func(context.Context, *store.Store, *I) (string, T, error)) {
	carryOut(a, h, op, do, nil, false)
}

// onceSecret is once where the answer has a secret: it is not kept, so a repeat
// is told where to look, and no more.
func onceSecret[I keyed, T any](a *api, h huma.API, op huma.Operation, do func(context.Context, *store.Store, *I) (string, T, error)) {
	op.Description += " With an Idempotency-Key a repeat is refused (409, already_done): the secret of the first answer is not kept."
	carryOut(a, h, op, do, nil, true)
}

// keeper keeps what a request with a key is answered at last, in a transaction of its person's, and
// returns what was kept before; nil: this is the first, or there is no key.
type keeper[T any] func(ctx context.Context, s *store.Store, body T, refused *Problem) (*store.Answered, error)

// carryOut is once. then, if there is one, waits after the transaction for what becomes of it: that
// is the answer, for repeats too. A Problem that is kept is an answer as well; after any other error
// a repeat waits again.
func carryOut[I keyed, T any](a *api, h huma.API, op huma.Operation, do func(context.Context, *store.Store, *I) (string, T, error), then func(context.Context, *I, T, keeper[T]) (T, error), secret bool) {
	add(a, h, op, func(ctx context.Context, in *I) (*made[T], error) {
		key := (*in).key()
		digest, err := digestOf(op.OperationID, in)
		if err != nil {
			return nil, err
		}
		answer, refused, settled := &made[T]{}, (*Problem)(nil), false
		finish := func(ctx context.Context, s *store.Store, body T, settled bool) (err error) {
			keep := store.Answered{Location: answer.Location, Settled: settled}
			if refused != nil {
				keep.Status = refused.Status
				keep.Answer, err = json.Marshal(refused.Problem)
			} else if !secret {
				keep.Answer, err = json.Marshal(body)
			}
			if err != nil {
				return err
			}
			return s.FinishRequest(ctx, key, digest, keep)
		}
		err = a.as(ctx).Within(ctx, "carry out the request", func(ctx context.Context, s *store.Store) error {
			if key != "" {
				before, err := s.BeginRequest(ctx, key, digest)
				if err != nil {
					return err
				}
				if before != nil {
					settled, answer.Replayed = before.Settled, "true"
					return replay(answer, before)
				}
			}
			location, body, err := do(ctx, s, in)
			answer.Location, answer.Body = location, body
			if refused = keptProblem(err); key == "" || err != nil && refused == nil {
				return err
			}
			return finish(ctx, s, body, refused != nil || then == nil)
		})
		if refused != nil && err == nil {
			return nil, refused
		}
		if err != nil || then == nil || settled {
			return answer, err
		}
		keep := func(ctx context.Context, s *store.Store, body T, problem *Problem) (*store.Answered, error) {
			if key == "" {
				return nil, nil
			}
			before, err := s.BeginRequest(ctx, key, digest)
			if err != nil || before != nil && before.Settled {
				return before, err
			}
			refused = problem
			return nil, finish(ctx, s, body, true)
		}
		body, err := then(ctx, in, answer.Body, keep)
		problem := keptProblem(err)
		answer.Body = body
		if err != nil && problem == nil {
			return answer, err
		}
		var before *store.Answered
		failed := a.as(ctx).Within(ctx, "keep the answer", func(ctx context.Context, s *store.Store) (err error) {
			before, err = keep(ctx, s, body, problem)
			return err
		})
		switch {
		case failed != nil:
			return answer, failed
		case before != nil:
			return answer, replay(answer, before)
		}
		return answer, err
	})
}

// keptProblem is an error that is kept as the answer to a request with a key; nil: it is none.
func keptProblem(err error) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok && p.kept {
		return p
	}
	return nil
}

// replay is what was answered before.
func replay[T any](answer *made[T], before *store.Answered) error {
	answer.Location = before.Location
	switch {
	case before.Status != 0:
		p := &Problem{kept: true, replayed: answer.Replayed != ""}
		if err := json.Unmarshal(before.Answer, &p.Problem); err != nil {
			return err
		}
		return p
	case before.Answer == nil:
		return newProblem(http.StatusConflict, "already_done", "this request was carried out already; its answer had a secret, which is not kept",
			"read "+before.Location+", and have a new secret made there if the first answer is lost")
	}
	return json.Unmarshal(before.Answer, &answer.Body)
}

// digestOf tells requests apart: the operation and all that was given to it, but
// for the key.
func digestOf(operation string, input any) (string, error) {
	text, err := json.Marshal(input)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append([]byte(operation+"\n"), text...))
	return hex.EncodeToString(sum[:]), nil
}

// listed is the answer of an operation that lists.
type listed[T any] struct {
	Body wire.Page[T]
}

// PageParams are the parameters of an operation that lists.
type PageParams struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"The most entries of a page."`
	Cursor string `query:"cursor" maxLength:"2000" doc:"Where the page begins: the next_cursor of the one before. Absent: at the list's beginning."`
}

// A cursor is opaque to clients: the list's name and the keys of the last entry
// that they have seen, so that entries that come and go in between make no other
// be left out or told twice.
func encodeCursor(list string, keys ...any) string {
	text, _ := json.Marshal(append([]any{list}, keys...)) // texts and numbers only
	return base64.RawURLEncoding.EncodeToString(text)
}

// decodeCursor reads the keys of the list's cursor into keys, or leaves them as
// they are where there is no cursor.
func decodeCursor(list, cursor string, keys ...any) error {
	if cursor == "" {
		return nil
	}
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return badCursor(cursor)
	}
	var parts []json.RawMessage
	if json.Unmarshal(text, &parts) != nil || len(parts) != len(keys)+1 || string(parts[0]) != `"`+list+`"` {
		return badCursor(cursor)
	}
	for i, key := range keys {
		if json.Unmarshal(parts[i+1], key) != nil {
			return badCursor(cursor)
		}
	}
	return nil
}

// listOf is a page as it is answered: never null.
func listOf[T any](items []T, next string) *listed[T] {
	if items == nil {
		items = []T{}
	}
	return &listed[T]{Body: wire.Page[T]{Items: items, NextCursor: next}}
}

// paged answers a page of a list, of what a request names, whose entries have one key.
func paged[X, R, T any, K comparable](ctx context.Context, a *api, in ref[X], page PageParams, list, doing string, to func(R) T,
	read func(ctx context.Context, s *store.Store, of X, after K, limit int) ([]R, K, error),
) (*listed[T], error) {
	var after, next K
	if err := decodeCursor(list, page.Cursor, &after); err != nil {
		return nil, err
	}
	found, err := about(ctx, a, in, doing, func(ctx context.Context, s *store.Store, of X) (found []R, err error) {
		found, next, err = read(ctx, s, of, after, page.Limit)
		return found, err
	})
	return listAfter(list, each(to, found), next, err)
}
