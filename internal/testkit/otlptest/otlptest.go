// Package otlptest is a collector of traces for tests. It reads requests by OpenTelemetry's own
// decoder (pdata), as the real collector's receiver does, so what it understands is OTLP.
package otlptest

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// Span is one that was received.
type Span struct {
	Service, Name     string
	Trace, ID, Parent string // in hexadecimal; no parent: ""
	Server            bool
	Began, Ended      time.Time
	Failed            string // what its status says, "" for a span that did not fail
	Attributes        map[string]any
}

// Took is how long it was.
func (s Span) Took() time.Duration { return s.Ended.Sub(s.Began) }

// Collector takes traces at URL until the test ends.
type Collector struct {
	URL string

	mu    sync.Mutex
	spans []Span
}

// New starts a collector.
func New(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	c.URL = server.URL
	return c
}

// Environment is what programs are started with to send traces here at once.
func (c *Collector) Environment() []string {
	return []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.URL, "OTEL_BSP_SCHEDULE_DELAY=50"}
}

// ServeHTTP implements http.Handler.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := c.take(r); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, "{}")
}

func (c *Collector) take(r *http.Request) error {
	if r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/json" {
		return fmt.Errorf("%s with %s: not OTLP in JSON", r.URL.Path, r.Header.Get("Content-Type"))
	}
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unpacked, err := gzip.NewReader(body)
		if err != nil {
			return err
		}
		body = unpacked
	}
	text, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	traces, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(text)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range traces.ResourceSpans().All() {
		service, _ := resource.Resource().Attributes().Get("service.name")
		for _, scope := range resource.ScopeSpans().All() {
			for _, s := range scope.Spans().All() {
				c.spans = append(c.spans, spanOf(service.Str(), s))
			}
		}
	}
	return nil
}

func spanOf(service string, s ptrace.Span) Span {
	one := Span{
		Service: service, Name: s.Name(), Trace: s.TraceID().String(), ID: s.SpanID().String(), Server: s.Kind() == ptrace.SpanKindServer,
		Began: s.StartTimestamp().AsTime(), Ended: s.EndTimestamp().AsTime(), Attributes: s.Attributes().AsRaw(),
	}
	if s.ParentSpanID() != (pcommon.SpanID{}) {
		one.Parent = s.ParentSpanID().String()
	}
	if s.Status().Code() == ptrace.StatusCodeError {
		one.Failed = s.Status().Message()
	}
	return one
}

// Spans are those that were received so far.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Await returns all spans once so many of a name were received.
func (c *Collector) Await(t testing.TB, name string, count int) []Span {
	t.Helper()
	for limit := patience.Begin(time.Minute); ; limit.Pause() {
		all := c.Spans()
		found := 0
		for _, s := range all {
			if s.Name == name {
				found++
			}
		}
		if found >= count {
			return all
		}
		if limit.Over() {
			t.Fatalf("%d spans %q were received, want %d; all:\n%s", found, name, count, Tree(all))
		}
	}
}

// Tree draws spans, those of each trace below one another, by when they began.
func Tree(all []Span) string {
	var text strings.Builder
	known := map[string]bool{}
	below := map[string][]Span{}
	for _, s := range all {
		known[s.Trace+s.ID] = true
		below[s.Trace+s.Parent] = append(below[s.Trace+s.Parent], s)
	}
	var draw func(s Span, depth int)
	draw = func(s Span, depth int) {
		fmt.Fprintf(&text, "%s%s: %s (%s)", strings.Repeat("  ", depth), s.Service, s.Name, s.Took().Round(10*time.Microsecond))
		if s.Failed != "" {
			fmt.Fprintf(&text, " failed: %s", s.Failed)
		}
		text.WriteByte('\n')
		children := below[s.Trace+s.ID]
		slices.SortStableFunc(children, func(a, b Span) int { return a.Began.Compare(b.Began) })
		for _, child := range children {
			draw(child, depth+1)
		}
	}
	for _, s := range all {
		if s.Parent == "" || !known[s.Trace+s.Parent] {
			fmt.Fprintf(&text, "trace %s\n", s.Trace)
			draw(s, 1)
		}
	}
	return text.String()
}
