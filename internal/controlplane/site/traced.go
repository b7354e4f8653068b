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
		r = r.WithContext(ctx)
		if at := tracing.From(ctx); tracing.Sampled(at) {
			web.Traced(r, tracing.TraceOf(at))
		}
		web.Observe(next, func(answered web.Request) {
			failed := ""
			if answered.Status >= http.StatusInternalServerError {
				failed = strconv.Itoa(answered.Status)
			}
			end(strings.TrimSpace(r.Method+" "+answered.Route), failed, attribute.String("http.request.method", r.Method),
				attribute.String("http.route", answered.Route), attribute.Int("http.response.status_code", answered.Status))
		}).ServeHTTP(w, r)
	})
}
