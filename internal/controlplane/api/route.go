package api

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"

	"github.com/google/uuid"
)

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
