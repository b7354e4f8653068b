package tracing

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/attribute"
)

// SlowCall is how long a call of the database takes to be a span of its own.
const SlowCall = 5 * time.Millisecond

// Queries is a pgx.QueryTracer that records the statements of a span which take SlowCall or
// longer: their text, which has no values, and never their arguments.
type Queries struct{}

// query is the key of one that is under way.
type query struct{}

type begun struct {
	at   time.Time
	text string
}

// TraceQueryStart implements pgx.QueryTracer.
func (Queries) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if Of(ctx) == nil {
		return ctx
	}
	return context.WithValue(ctx, query{}, begun{time.Now(), data.SQL})
}

// mostText is the most of a statement that a span has, in bytes.
const mostText = 500

// TraceQueryEnd implements pgx.QueryTracer.
func (Queries) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	q, ok := ctx.Value(query{}).(begun)
	now := time.Now()
	if !ok || now.Sub(q.at) < SlowCall {
		return
	}
	s := Span{Name: "sql", Began: q.at, Ended: now, Attributes: []attribute.KeyValue{
		attribute.String("db.system.name", "postgresql"), attribute.String("db.query.text", strings.ToValidUTF8(q.text[:min(len(q.text), mostText)], "")),
	}}
	if data.Err != nil {
		s.Failed = "query_failed"
	}
	Of(ctx).Record(ctx, s)
}
