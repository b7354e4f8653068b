package site

import (
	"net/http"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"

	"github.com/tendril-run/tendril/internal/controlplane/web"
	"github.com/tendril-run/tendril/internal/tracing"
)

// traced puts the trace that a request names into its context, so that what it asks for belongs
// to that, and has requests recorded: those of a trace, and those that change something.
func traced(next http.Handler, t *tracing.Tracer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := tracing.Into(r.Context(), r.Header.Get("Traceparent"))
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions
		if t == nil || reads && (tracing.From(ctx) == "" || r.URL.Path == "/live" || strings.HasSuffix(r.URL.Path, "/stream")) {
			next.ServeHTTP(w, r.WithContext(ctx))
			return
		}
		ctx, end := t.Begin(ctx, tracing.Span{Name: r.Method, Server: true})
		r, answer := r.WithContext(ctx), &answered{ResponseWriter: w, status: http.StatusOK}
		if at := tracing.From(ctx); tracing.Sampled(at) {
			web.Traced(r, tracing.TraceOf(at))
		}
		defer func() {
			failed := ""
			if answer.status >= http.StatusInternalServerError {
				failed = strconv.Itoa(answer.status)
			}
			route := web.Route(r)
			end(strings.TrimSpace(r.Method+" "+route), failed, attribute.String("http.request.method", r.Method),
				attribute.String("http.route", route), attribute.Int("http.response.status_code", answer.status))
		}()
		next.ServeHTTP(answer, r)
	})
}

// answered remembers the status that was answered.
type answered struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (a *answered) WriteHeader(status int) {
	if status >= http.StatusOK {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (a *answered) Unwrap() http.ResponseWriter { return a.ResponseWriter }
