package tracing

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// target is where spans go, as the environment says; see the OpenTelemetry Protocol Exporter
// specification for its variables.
type target struct {
	url     *url.URL
	headers http.Header
	timeout time.Duration // of one export with its repeats
	gzip    bool
	tls     *tls.Config // nil: the system's
}

// targetOf is nil where no endpoint is named.
func targetOf(getenv func(string) string) (*target, error) {
	of := func(name string) (string, string) {
		if value := getenv("OTEL_EXPORTER_OTLP_TRACES_" + name); value != "" {
			return value, "OTEL_EXPORTER_OTLP_TRACES_" + name
		}
		return getenv("OTEL_EXPORTER_OTLP_" + name), "OTEL_EXPORTER_OTLP_" + name
	}
	t := &target{timeout: 10 * time.Second}
	endpoint, variable := of("ENDPOINT")
	if endpoint == "" {
		return nil, nil
	}
	var err error
	if t.url, err = url.Parse(endpoint); err != nil || t.url.Scheme != "http" && t.url.Scheme != "https" || t.url.Host == "" || t.url.User != nil {
		return nil, fmt.Errorf("%s: must be a URL such as http://collector.example:4318, without a user and a password; those belong into OTEL_EXPORTER_OTLP_HEADERS", variable)
	}
	if variable == "OTEL_EXPORTER_OTLP_ENDPOINT" {
		t.url = t.url.JoinPath("v1", "traces")
	}
	if protocol, variable := of("PROTOCOL"); protocol != "" && protocol != "http/json" && protocol != "http/protobuf" {
		return nil, fmt.Errorf("%s: is %q; traces are sent by OTLP over HTTP: set http/json, and the collector's port for HTTP (4318)", variable, protocol)
	}
	headers, variable := of("HEADERS")
	if t.headers, err = readHeaders(headers); err != nil {
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	if text, variable := of("TIMEOUT"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n <= 0 {
			return nil, fmt.Errorf("%s: is %q; it must be a number of milliseconds", variable, text)
		}
		t.timeout = time.Duration(n) * time.Millisecond
	}
	switch compression, variable := of("COMPRESSION"); compression {
	case "gzip":
		t.gzip = true
	case "", "none":
	default:
		return nil, fmt.Errorf("%s: is %q; it must be gzip or none", variable, compression)
	}
	return t, t.readCertificates(of)
}

// readHeaders reads "name=value,name=value" with values as in URLs. Errors have no value.
func readHeaders(text string) (http.Header, error) {
	headers := http.Header{}
	for pair := range strings.SplitSeq(text, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if name = strings.TrimSpace(name); !ok || err != nil || name == "" || strings.ContainsAny(name+value, "\r\n") {
			return nil, errors.New("must be name=value, with a comma between two of them and values as in URLs")
		}
		headers.Set(name, value)
	}
	return headers, nil
}

func (t *target) readCertificates(of func(string) (string, string)) error {
	authority, variable := of("CERTIFICATE")
	if authority != "" {
		pem, err := os.ReadFile(authority)
		pool := x509.NewCertPool()
		if err == nil && !pool.AppendCertsFromPEM(pem) {
			err = errors.New("no PEM certificate is in it")
		}
		if err != nil {
			return fmt.Errorf("%s: read %s: %w", variable, authority, err)
		}
		t.tls = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	certificate, variable := of("CLIENT_CERTIFICATE")
	key, _ := of("CLIENT_KEY")
	if certificate == "" && key == "" {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return fmt.Errorf("%s and CLIENT_KEY: %w", variable, err)
	}
	if t.tls == nil {
		t.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	t.tls.Certificates = []tls.Certificate{pair}
	return nil
}

// address is the URL as people may see it.
func (t *target) address() string {
	shown := *t.url
	shown.RawQuery, shown.Fragment = "", ""
	return shown.String()
}

func (t *target) client() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // it is one
	transport.TLSClientConfig = t.tls
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // headers are for this collector alone
	}}
}

// exporter implements sdk.SpanExporter by OTLP over HTTP in JSON.
type exporter struct {
	target *target
	client *http.Client
	said   *troubles
}

// Shutdown implements sdk.SpanExporter.
func (e *exporter) Shutdown(context.Context) error {
	e.client.CloseIdleConnections()
	return nil
}

// ExportSpans implements sdk.SpanExporter. It repeats what the collector may take later.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	body, err := json.Marshal(requestOf(spans))
	if err != nil {
		return err
	}
	if e.target.gzip {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		_, err := w.Write(body)
		if err := cmp.Or(err, w.Close()); err != nil {
			return err
		}
		body = packed.Bytes()
	}
	ctx, cancel := context.WithTimeout(ctx, e.target.timeout)
	defer cancel()
	_, err = backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, e.post(ctx, body) }, backoff.WithMaxElapsedTime(e.target.timeout))
	if err != nil {
		return fmt.Errorf("send %d spans to %s: %w", len(spans), e.target.address(), err)
	}
	return nil
}

// mostAnswer is the most that is read of an answer, in bytes.
const mostAnswer = 64 << 10

func (e *exporter) post(ctx context.Context, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.target.url.String(), bytes.NewReader(body))
	if err != nil {
		return backoff.Permanent(err)
	}
	request.Header = e.target.headers.Clone()
	request.Header.Set("Content-Type", "application/json")
	if e.target.gzip {
		request.Header.Set("Content-Encoding", "gzip")
	}
	answer, err := e.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close() //nolint:errcheck // only read
	text, err := io.ReadAll(io.LimitReader(answer.Body, mostAnswer))
	switch {
	case answer.StatusCode == http.StatusOK && err == nil:
		return e.partly(text)
	case answer.StatusCode == http.StatusTooManyRequests, answer.StatusCode == http.StatusBadGateway,
		answer.StatusCode == http.StatusServiceUnavailable, answer.StatusCode == http.StatusGatewayTimeout:
		err = fmt.Errorf("the collector answers %s", answer.Status)
		if after, parseErr := strconv.Atoi(answer.Header.Get("Retry-After")); parseErr == nil {
			return backoff.RetryAfter(after)
		}
		return err
	case err != nil:
		return err
	}
	return backoff.Permanent(fmt.Errorf("the collector answers %s", answer.Status))
}

// partly tells of spans that the collector did not take though it took the request, which is not
// to be repeated.
func (e *exporter) partly(text []byte) error {
	var answer struct {
		PartialSuccess struct {
			RejectedSpans json.Number `json:"rejectedSpans"`
		} `json:"partialSuccess"`
	}
	if json.Unmarshal(text, &answer) == nil && strings.Trim(answer.PartialSuccess.RejectedSpans.String(), "0") != "" {
		e.said.met(fmt.Errorf("the collector refused %s spans", answer.PartialSuccess.RejectedSpans))
	}
	return nil
}

// The JSON form of OTLP's ExportTraceServiceRequest: ids in hexadecimal, 64-bit numbers as text.
type (
	request struct {
		ResourceSpans []resourceSpans `json:"resourceSpans"`
	}
	resourceSpans struct {
		Resource struct {
			Attributes []keyValue `json:"attributes"`
		} `json:"resource"`
		ScopeSpans []scopeSpans `json:"scopeSpans"`
	}
	scopeSpans struct {
		Scope struct {
			Name string `json:"name"`
		} `json:"scope"`
		Spans []spanJSON `json:"spans"`
	}
	spanJSON struct {
		TraceID           string     `json:"traceId"`
		SpanID            string     `json:"spanId"`
		ParentSpanID      string     `json:"parentSpanId,omitempty"`
		Flags             uint32     `json:"flags"`
		Name              string     `json:"name"`
		Kind              int        `json:"kind"`
		StartTimeUnixNano int64      `json:"startTimeUnixNano,string"`
		EndTimeUnixNano   int64      `json:"endTimeUnixNano,string"`
		Attributes        []keyValue `json:"attributes,omitempty"`
		Dropped           int        `json:"droppedAttributesCount,omitempty"`
		Status            statusJSON `json:"status"`
	}
	statusJSON struct {
		Message string `json:"message,omitempty"`
		Code    int    `json:"code,omitempty"`
	}
	keyValue struct {
		Key   string         `json:"key"`
		Value map[string]any `json:"value"`
	}
)

// requestOf has all spans of one process, which is one resource.
func requestOf(spans []sdk.ReadOnlySpan) request {
	var r resourceSpans
	if len(spans) > 0 {
		r.Resource.Attributes = attributesOf(spans[0].Resource().Attributes())
	}
	scope := scopeSpans{Spans: make([]spanJSON, 0, len(spans))}
	for _, s := range spans {
		scope.Scope.Name = s.InstrumentationScope().Name
		one := spanJSON{
			TraceID: s.SpanContext().TraceID().String(), SpanID: s.SpanContext().SpanID().String(), Flags: uint32(s.SpanContext().TraceFlags()),
			Name: s.Name(), Kind: int(s.SpanKind()), StartTimeUnixNano: s.StartTime().UnixNano(), EndTimeUnixNano: s.EndTime().UnixNano(),
			Attributes: attributesOf(s.Attributes()), Dropped: s.DroppedAttributes(),
		}
		if parent := s.Parent(); parent.HasSpanID() {
			one.ParentSpanID = parent.SpanID().String()
		}
		if s.Status().Code == codes.Error {
			one.Status = statusJSON{s.Status().Description, 2} // STATUS_CODE_ERROR
		}
		scope.Spans = append(scope.Spans, one)
	}
	r.ScopeSpans = []scopeSpans{scope}
	return request{[]resourceSpans{r}}
}

func attributesOf(all []attribute.KeyValue) []keyValue {
	out := make([]keyValue, 0, len(all))
	for _, a := range all {
		value := map[string]any{}
		switch a.Value.Type() {
		case attribute.BOOL:
			value["boolValue"] = a.Value.AsBool()
		case attribute.INT64:
			value["intValue"] = strconv.FormatInt(a.Value.AsInt64(), 10)
		case attribute.FLOAT64:
			value["doubleValue"] = a.Value.AsFloat64()
		default:
			value["stringValue"] = a.Value.String()
		}
		out = append(out, keyValue{string(a.Key), value})
	}
	return out
}
