package tracing

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/google/uuid"
)

// mostWaiting is how many spans wait for the collector; what comes beyond is dropped. A large
// run's come all at once.
const mostWaiting = 16 << 10

// Tracer records spans. A nil one records nothing.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// Start returns a Tracer as the environment says, nil where it names no collector. What is
// wrong with that is an error: an operator who asks for traces gets them. Failures to export are
// logged, and cost spans alone.
func Start(service, version string, getenv func(string) string, log *slog.Logger) (*Tracer, error) {
	if getenv("OTEL_SDK_DISABLED") == "true" || getenv("OTEL_TRACES_EXPORTER") == "none" {
		return nil, nil
	}
	target, err := targetOf(getenv)
	if target == nil || err != nil {
		return nil, err
	}
	// The last one wins, and people's word is the last.
	about, err := resource.New(context.Background(),
		resource.WithAttributes(attribute.String("service.name", service), attribute.String("service.version", version), attribute.String("service.instance.id", uuid.NewString())),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	said := &troubles{log: log}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { said.met(err) }))
	var options []sdk.BatchSpanProcessorOption
	if getenv("OTEL_BSP_MAX_QUEUE_SIZE") == "" {
		options = append(options, sdk.WithMaxQueueSize(mostWaiting))
	}
	batches := sdk.NewBatchSpanProcessor(&exporter{target: target, client: target.client(), said: said}, options...)
	provider := sdk.NewTracerProvider(sdk.WithResource(about), sdk.WithIDGenerator(ids{}), sdk.WithSpanProcessor(batches))
	log.Info("traces are sent", "to", target.address())
	return &Tracer{provider, provider.Tracer("github.com/tendril-run/tendril")}, nil
}

// lastSpans is how long a program that ends waits for the collector.
const lastSpans = 5 * time.Second

// Close sends what waits, for a few seconds at most.
func (t *Tracer) Close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastSpans)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // the exporter has logged it
}

// Span is something that has ended.
type Span struct {
	Name         string
	Began, Ended time.Time
	// Server says that it answers a request of another process.
	Server bool
	// Failed is the code of the error that it ended with, "" for none.
	Failed     string
	Attributes []attribute.KeyValue
	Children   []Span
}

// Record records a span and those below it, within the trace of ctx or one of its own.
func (t *Tracer) Record(ctx context.Context, s Span) {
	if t == nil {
		return
	}
	ctx, span := t.begin(ctx, s)
	for _, child := range s.Children {
		t.Record(ctx, child)
	}
	t.end(span, s)
}

func (t *Tracer) begin(ctx context.Context, s Span) (context.Context, trace.Span) {
	kind := trace.SpanKindInternal
	if s.Server {
		kind = trace.SpanKindServer
	}
	return t.tracer.Start(ctx, s.Name, trace.WithTimestamp(s.Began), trace.WithAttributes(s.Attributes...), trace.WithSpanKind(kind))
}

func (t *Tracer) end(span trace.Span, s Span) {
	if s.Failed != "" {
		span.SetStatus(codes.Error, s.Failed)
		span.SetAttributes(attribute.String("error.type", s.Failed))
	}
	ended := s.Ended
	if ended.Before(s.Began) { // clocks of two machines
		ended = s.Began
	}
	span.End(trace.WithTimestamp(ended))
}

// Begin begins a span that others are to be within, which Of finds the Tracer for. End ends it
// with a name, "" for the one that it has, the code of an error, "" for none, and further
// attributes; it must be called.
func (t *Tracer) Begin(ctx context.Context, s Span) (_ context.Context, end func(name, failed string, more ...attribute.KeyValue)) {
	if t == nil {
		return ctx, func(string, string, ...attribute.KeyValue) {}
	}
	s.Began = time.Now()
	ctx, span := t.begin(context.WithValue(ctx, within{}, t), s)
	return ctx, func(name, failed string, more ...attribute.KeyValue) {
		if name != "" {
			span.SetName(name)
		}
		span.SetAttributes(more...)
		s.Failed, s.Ended = failed, time.Now()
		t.end(span, s)
	}
}

// within is the key by which Of finds a Tracer.
type within struct{}

// Of is the Tracer whose span ctx is within; nil: of none.
func Of(ctx context.Context) *Tracer {
	t, _ := ctx.Value(within{}).(*Tracer)
	return t
}

// ownTrace is the key by which ids finds the trace that a root is to have.
type ownTrace struct{}

// WithTrace has a span without a parent begin the trace of that id, and not one of a random
// id: whatever is recorded of one run is in one trace, whichever process does it.
func WithTrace(ctx context.Context, id uuid.UUID) context.Context {
	return context.WithValue(ctx, ownTrace{}, trace.TraceID(id))
}

// ids are random, but for what WithTrace says.
type ids struct{}

// NewIDs implements sdk.IDGenerator.
func (i ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	id, ok := ctx.Value(ownTrace{}).(trace.TraceID)
	for !ok || !id.IsValid() {
		binary.NativeEndian.PutUint64(id[:8], rand.Uint64()) //nolint:gosec // no secret
		binary.NativeEndian.PutUint64(id[8:], rand.Uint64()) //nolint:gosec // no secret
		ok = true
	}
	return id, i.NewSpanID(ctx, id)
}

// NewSpanID implements sdk.IDGenerator.
func (ids) NewSpanID(context.Context, trace.TraceID) (id trace.SpanID) {
	for !id.IsValid() {
		binary.NativeEndian.PutUint64(id[:], rand.Uint64()) //nolint:gosec // no secret
	}
	return id
}

// Into adds the trace that a traceparent header names to ctx. One that is not valid is as
// none, as the specification wants it.
func Into(ctx context.Context, traceparent string) context.Context {
	parent, err := parse(traceparent)
	if err != nil {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, parent)
}

// From is the traceparent header that says which span of ctx what follows belongs to; "" for
// none.
func From(ctx context.Context) string {
	at := trace.SpanContextFromContext(ctx)
	if !at.IsValid() {
		return ""
	}
	return fmt.Sprintf("00-%s-%s-%02x", at.TraceID(), at.SpanID(), byte(at.TraceFlags()&trace.FlagsSampled))
}

// Valid reports whether a text is a traceparent header of the version 00, the one that is
// stored and passed on. SQL says the same: see tendril.traceparent().
func Valid(traceparent string) bool {
	_, err := parse(traceparent)
	return err == nil
}

func parse(traceparent string) (trace.SpanContext, error) {
	parts := strings.Split(traceparent, "-")
	if len(parts) != 4 || parts[0] != "00" || len(parts[3]) != 2 || strings.Trim(parts[3], "0123456789abcdef") != "" {
		return trace.SpanContext{}, fmt.Errorf("%q is no traceparent header", traceparent)
	}
	id, err := trace.TraceIDFromHex(parts[1])
	span, spanErr := trace.SpanIDFromHex(parts[2])
	if err := cmp.Or(err, spanErr); err != nil {
		return trace.SpanContext{}, err
	}
	config := trace.SpanContextConfig{TraceID: id, SpanID: span, Remote: true}
	if strings.IndexByte("13579bdf", parts[3][1]) >= 0 {
		config.TraceFlags = trace.FlagsSampled
	}
	return trace.NewSpanContext(config), nil
}

// TraceOf is the trace that a traceparent header names, 32 hexadecimal digits; "" for none.
func TraceOf(traceparent string) string {
	parent, err := parse(traceparent)
	if err != nil {
		return ""
	}
	return parent.TraceID().String()
}

// Sampled reports whether a traceparent header says that its trace is recorded.
func Sampled(traceparent string) bool {
	parent, err := parse(traceparent)
	return err == nil && parent.IsSampled()
}

// troubles logs failures to export: the first at once, then one in a while, with how many there
// were.
type troubles struct {
	log *slog.Logger

	mu     sync.Mutex
	told   time.Time
	hidden int
}

// tellAgain is how long a collector that is away is not mentioned again.
const tellAgain = 10 * time.Minute

func (t *troubles) met(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.told) < tellAgain {
		t.hidden++
		return
	}
	t.log.Warn("traces could not be sent; runs are not affected", "error", err, "more_since", t.hidden)
	t.told, t.hidden = time.Now(), 0
}
