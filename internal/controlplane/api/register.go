package api

import (
	"cmp"
	"context"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tendril-run/tendril/internal/controlplane/person"
)

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
	found := []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusNotAcceptable, http.StatusUnprocessableEntity, http.StatusServiceUnavailable}
	if op.Method != http.MethodGet {
		found = append(found, http.StatusConflict, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge,
			http.StatusUnsupportedMediaType, http.StatusTooManyRequests)
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
