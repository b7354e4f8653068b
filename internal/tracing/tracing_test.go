package tracing

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type environment map[string]string

func (e environment) get(name string) string { return e[name] }

func TestTraceparents(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/traceparents.json")
	var cases []struct {
		Header string
		Valid  bool
	}
	if err := errors.Join(err, json.Unmarshal(text, &cases)); err != nil || len(cases) == 0 {
		t.Fatal(err)
	}
	for _, tc := range cases {
		if got := Valid(tc.Header); got != tc.Valid {
			t.Errorf("Valid(%q) = %t, want %t", tc.Header, got, tc.Valid)
		}
		want := ""
		if tc.Valid {
			want = tc.Header[:53] + map[bool]string{true: "01", false: "00"}[strings.ContainsAny(tc.Header[54:], "13579bdf")]
		}
		if got := From(Into(t.Context(), tc.Header)); got != want {
			t.Errorf("From(Into(%q)) = %q, want %q", tc.Header, got, want)
		}
	}
}

func TestNoCollectorIsNoTracer(t *testing.T) {
	t.Parallel()
	for _, environ := range []environment{
		{}, {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
		{"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, {"OTEL_EXPORTER_OTLP_HEADERS": "a"},
	} {
		tracer, err := Start("x", "1", environ.get, slog.New(slog.DiscardHandler))
		if tracer != nil || err != nil {
			t.Errorf("Start(%v) = %v, %v, want none", environ, tracer, err)
		}
		tracer.Record(t.Context(), Span{Name: "nobody hears"})
		ctx, end := tracer.Begin(t.Context(), Span{})
		if end("", ""); From(ctx) != "" {
			t.Errorf("a trace without a Tracer is %s", From(ctx))
		}
		tracer.Close()
	}
}

func TestWrongSettingsAreNamed(t *testing.T) {
	t.Parallel()
	const endpoint = "http://127.0.0.1:4318"
	none := filepath.Join(t.TempDir(), "none.pem")
	for want, environ := range map[string]environment{
		"OTEL_EXPORTER_OTLP_ENDPOINT: must be a URL":        {"OTEL_EXPORTER_OTLP_ENDPOINT": "127.0.0.1:4318"},
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: must be a URL": {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://me:secret@c.example"},
		"OTEL_EXPORTER_OTLP_PROTOCOL: is \"grpc\"":          {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
		"OTEL_EXPORTER_OTLP_HEADERS: must be name=value":    {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_HEADERS": "secret"},
		"OTEL_EXPORTER_OTLP_TRACES_HEADERS: must be name":   {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "a=secret%0a"},
		"OTEL_EXPORTER_OTLP_TIMEOUT: is \"1s\"":             {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_TIMEOUT": "1s"},
		"OTEL_EXPORTER_OTLP_COMPRESSION: is \"zstd\"":       {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_COMPRESSION": "zstd"},
		"OTEL_EXPORTER_OTLP_CERTIFICATE: read " + none:      {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_CERTIFICATE": none},
		"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and":         {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_CLIENT_KEY": none},
	} {
		if _, err := targetOf(environ.get); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("targetOf(%v) = %v, want %s and no secret", environ, err, want)
		}
	}
}

// collector is one that answers with each status in turn, and then 200.
type collector struct {
	mu       sync.Mutex
	statuses []int
	got      []request
	headers  []http.Header
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unpacked, err := gzip.NewReader(body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = unpacked
	}
	var said request
	if err := json.NewDecoder(body).Decode(&said); err != nil || r.URL.Path != "/v1/traces" {
		http.Error(w, "no request", http.StatusBadRequest)
		return
	}
	c.headers = append(c.headers, r.Header)
	if len(c.statuses) > 0 {
		status := c.statuses[0]
		c.statuses = c.statuses[1:]
		w.WriteHeader(status)
		return
	}
	c.got = append(c.got, said)
	_, _ = io.WriteString(w, `{"partialSuccess": {"rejectedSpans": "2"}}`)
}

func TestSpansReachTheCollector(t *testing.T) {
	t.Parallel()
	c := &collector{statuses: []int{http.StatusServiceUnavailable}}
	server := httptest.NewServer(c)
	defer server.Close()
	var log bytes.Buffer
	tracer, err := Start("tendril", "1.2.3", environment{
		"OTEL_EXPORTER_OTLP_ENDPOINT": server.URL, "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20hunter2", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
	}.get, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	began := time.Unix(1_700_000_000, 5)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	tracer.Record(Into(t.Context(), parent), Span{
		Name: "run", Began: began, Ended: began.Add(time.Second), Failed: "apply_failed",
		Attributes: []attribute.KeyValue{attribute.Int("n", 42), attribute.String("s", "text"), attribute.Bool("b", true), attribute.Float64("f", 1.5)},
		Children:   []Span{{Name: "plan", Began: began.Add(time.Second), Ended: began}},
	})
	own := uuid.New()
	tracer.Record(WithTrace(t.Context(), own), Span{Name: "alone", Began: began, Ended: began})
	tracer.Record(Into(t.Context(), parent[:53]+"00"), Span{Name: "not sampled", Began: began, Ended: began})
	_, end := tracer.Begin(t.Context(), Span{Server: true})
	end("answers", "", attribute.Int("http.response.status_code", 200))
	tracer.Close()

	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.got) != 1 || len(c.headers) != 2 || c.headers[1].Get("Authorization") != "Bearer hunter2" {
		t.Fatalf("the collector got %d requests of %d with %v, want one after a 503; the log:\n%s", len(c.got), len(c.headers), c.headers, &log)
	}
	spans := map[string]spanJSON{}
	for _, s := range c.got[0].ResourceSpans[0].ScopeSpans[0].Spans {
		spans[s.Name] = s
	}
	run, plan, alone, answers := spans["run"], spans["plan"], spans["alone"], spans["answers"]
	if len(spans) != 4 || run.TraceID != "0af7651916cd43dd8448eb211c80319c" || run.ParentSpanID != "b7ad6b7169203331" || plan.ParentSpanID != run.SpanID || plan.TraceID != run.TraceID {
		t.Errorf("the collector got %+v, want a run below its parent and a plan below that", spans)
	}
	if run.StartTimeUnixNano != began.UnixNano() || run.EndTimeUnixNano != began.Add(time.Second).UnixNano() || plan.EndTimeUnixNano < plan.StartTimeUnixNano {
		t.Errorf("the times are %d to %d, and of the plan %d to %d", run.StartTimeUnixNano, run.EndTimeUnixNano, plan.StartTimeUnixNano, plan.EndTimeUnixNano)
	}
	if run.Status != (statusJSON{"apply_failed", 2}) || alone.Status.Code != 0 || answers.Kind != 2 || run.Kind != 1 {
		t.Errorf("statuses and kinds are %+v %d, %+v %d", run.Status, run.Kind, answers.Status, answers.Kind)
	}
	if alone.TraceID != strings.ReplaceAll(own.String(), "-", "") || alone.ParentSpanID != "" {
		t.Errorf("what has no parent is %+v, want the root of the trace %s", alone, own)
	}
	encoded, err := json.Marshal(run.Attributes)
	if want := `[{"key":"n","value":{"intValue":"42"}},{"key":"s","value":{"stringValue":"text"}},{"key":"b","value":{"boolValue":true}},{"key":"f","value":{"doubleValue":1.5}},{"key":"error.type","value":{"stringValue":"apply_failed"}}]`; err != nil || string(encoded) != want {
		t.Errorf("attributes = %s, want %s", encoded, want)
	}
	encoded, _ = json.Marshal(c.got[0].ResourceSpans[0].Resource)
	for _, want := range []string{`{"key":"service.name","value":{"stringValue":"tendril"}}`, `"1.2.3"`, "telemetry.sdk.language"} {
		if !strings.Contains(string(encoded), want) {
			t.Errorf("the resource is %s, want %s in it", encoded, want)
		}
	}
	if !strings.Contains(log.String(), "refused 2 spans") || strings.Contains(log.String(), "hunter2") {
		t.Errorf("the log says:\n%s\nwant the spans that were refused, and no secret", &log)
	}
}

// What a collector refuses for good, or one that is away, costs the spans and one line of the log.
func TestCollectorThatDoesNotTakeSpans(t *testing.T) {
	t.Parallel()
	refuses := httptest.NewServer(&collector{statuses: []int{http.StatusUnauthorized, http.StatusUnauthorized}})
	defer refuses.Close()
	away := httptest.NewServer(nil)
	away.Close()
	for url, want := range map[string]string{refuses.URL: "401 Unauthorized", away.URL: "connection refused"} {
		var log bytes.Buffer
		e := &exporter{target: &target{url: mustURL(t, url+"/v1/traces"), timeout: 300 * time.Millisecond, headers: http.Header{}}, client: http.DefaultClient, said: &troubles{log: slog.New(slog.NewTextHandler(&log, nil))}}
		for range 2 {
			e.said.met(e.ExportSpans(t.Context(), nil))
		}
		if got := log.String(); !strings.Contains(got, want) || strings.Count(got, "level=WARN") != 1 {
			t.Errorf("the log says:\n%s\nwant %q, once", got, want)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func mustURL(t *testing.T, text string) *url.URL {
	t.Helper()
	parsed, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}
