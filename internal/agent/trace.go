package agent

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/tracing"
)

// mostParts is how many spans a run's trace has of calls, and of resources and marks; how
// many there would be more is told.
const mostParts = 2000

// runTrace gathers what one claim's trace says, from what its run reports, and has it recorded
// when the run is over. So it has no span without its parent, and one that is cut short by the
// agent's death is told by the next start, which reads the spool from its beginning.
//
//	run 42             from the claim to when the database knows its end
//	├─ queue wait      before it was claimed
//	├─ checkout, validate, engine, init, plan, apply, outputs, done
//	│  ├─ marks        process start, git resolve, terraform plan …
//	│  └─ resources    in their apply
//	├─ log delivery    from the first line stored to the last
//	└─ calls           of the database that took tracing.SlowCall or longer, and the last report
//
// A nil one gathers nothing.
type runTrace struct {
	tracer      *tracing.Tracer
	provision   uuid.UUID
	traceparent string

	mu      sync.Mutex
	claimed time.Time // zero: as the first report says
	about   []attribute.KeyValue
	queued  time.Duration // negative: not known
	stages  []tracing.Span
	parts   []tracing.Span // marks and resources
	begun   map[[3]string]time.Time
	calls   []tracing.Span
	dropped int
	logs    tracing.Span
	chunks  int
	bytes   int64
	end     *provision.Report
	ended   time.Time
}

// traceLimit is how long a run waits to learn of its trace.
const traceLimit = 2 * time.Second

// trace asks for the trace that a run belongs to, once: it goes on without.
func (b *boot) trace(claim uuid.UUID) string {
	ctx, cancel := context.WithTimeout(b.deliveries.ctx, traceLimit)
	defer cancel()
	traceparent, err := b.queue.ClaimTrace(ctx, claim)
	if err != nil {
		b.log.Warn("the run gets a trace of its own: the database does not say to which it belongs", "claim", claim, "error", err)
	}
	return traceparent
}

// newRunTrace is of a run that was claimed just now.
func newRunTrace(t *tracing.Tracer, a provision.Assignment) *runTrace {
	if t == nil {
		return nil
	}
	r := leftoverTrace(t, claimAbout{Provision: a.ProvisionID, Number: a.Number, Name: a.Workspace, Operation: a.Operation, Traceparent: a.Traceparent})
	r.claimed, r.queued = time.Now(), a.Waited()
	r.stages = []tracing.Span{{Name: string(provision.StageCheckout), Began: r.claimed}}
	if a.Attempt > 0 {
		r.about = append(r.about, attribute.Int("tendril.run.attempt", a.Attempt))
	}
	return r
}

// leftoverTrace is of a run whose agent has died.
func leftoverTrace(t *tracing.Tracer, about claimAbout) *runTrace {
	if t == nil {
		return nil
	}
	return &runTrace{tracer: t, provision: about.Provision, traceparent: about.Traceparent, queued: -1, begun: map[[3]string]time.Time{}, about: []attribute.KeyValue{
		attribute.Int64("tendril.run.number", about.Number), attribute.String("tendril.run.id", about.Provision.String()),
		attribute.String("tendril.workspace", about.Name), attribute.String("tendril.operation", string(about.Operation)),
	}}
}

// id is the trace's, for the agent's log; "" without one.
func (r *runTrace) id() string {
	if r == nil {
		return ""
	}
	if id := tracing.TraceOf(r.traceparent); id != "" {
		return id
	}
	return strings.ReplaceAll(r.provision.String(), "-", "")
}

// sampled is id where the trace is recorded, as far as its parent says; else "".
func (r *runTrace) sampled() string {
	if r == nil || r.traceparent != "" && !tracing.Sampled(r.traceparent) {
		return ""
	}
	return r.id()
}

// reported takes what the run told at that time.
func (r *runTrace) reported(report provision.Report, at time.Time) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.claimed.IsZero() {
		r.claimed = at
	}
	d := report.Detail
	r.enter(d.Stage, at)
	for key, value := range map[string]string{"tendril.commit": d.Commit, "tendril.engine": d.Engine, "tendril.engine.version": d.EngineVersion} {
		if value != "" {
			r.about = append(r.about, attribute.String(key, value))
		}
	}
	for _, m := range d.Marks {
		r.part(tracing.Span{Name: m.Name, Began: m.Began, Ended: m.Ended})
	}
	for _, e := range d.Events {
		r.event(e)
	}
}

// event takes the beginning or the end of a resource, of one of its provisioners, or of a step.
func (r *runTrace) event(e provision.Event) {
	kind, how, _ := strings.Cut(e.Kind, "_")
	of := [3]string{kind, e.Address, e.Action}
	switch how {
	case "started":
		if len(r.begun) < mostParts {
			r.begun[of] = e.At
		}
		return
	case "finished", "failed":
	default:
		return
	}
	began, known := r.begun[of]
	if !known { // the engine says whole seconds
		began = e.At.Add(-time.Duration(e.Seconds * float64(time.Second)))
	}
	delete(r.begun, of)
	s := tracing.Span{Name: e.Address, Began: began, Ended: e.At, Attributes: []attribute.KeyValue{
		attribute.String("tendril.kind", kind), attribute.String("tendril.action", e.Action),
	}}
	if kind != "resource" {
		s.Name = strings.TrimSpace(e.Address + " " + e.Action)
	}
	if how == "failed" {
		s.Failed = e.Kind
	}
	r.part(s)
}

// enter ends the stage that the run was in.
func (r *runTrace) enter(stage provision.Stage, at time.Time) {
	last := len(r.stages) - 1
	if stage == "" || last >= 0 && r.stages[last].Name == string(stage) {
		return
	}
	if last >= 0 {
		r.stages[last].Ended = at
	}
	r.stages = append(r.stages, tracing.Span{Name: string(stage), Began: at})
}

func (r *runTrace) part(s tracing.Span) {
	if len(r.parts) == mostParts {
		r.dropped++
		return
	}
	r.parts = append(r.parts, s)
}

// called takes a call of the database that has just ended.
func (r *runTrace) called(function string, began time.Time, err error, always bool) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	took := time.Since(began)
	if took < tracing.SlowCall && !always {
		return
	}
	if len(r.calls) == mostParts {
		r.dropped++
		return
	}
	s := tracing.Span{Name: function, Began: began, Ended: began.Add(took)}
	if err != nil {
		s.Failed = "call_failed"
	}
	r.calls = append(r.calls, s)
}

// stored takes lines that were stored by a call that has just ended.
func (r *runTrace) stored(began time.Time, chunks []provision.LogChunk) {
	if r == nil || len(chunks) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.logs.Began.IsZero() {
		r.logs = tracing.Span{Name: "log delivery", Began: began}
	}
	r.logs.Ended = time.Now()
	r.chunks += len(chunks)
	for _, c := range chunks {
		r.bytes += int64(len(c.Text))
	}
}

// over says how the run has ended, as the database knows.
func (r *runTrace) over(report provision.Report) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end, r.ended = &report, time.Now()
}

// record has the trace recorded if the run is over, once.
func (r *runTrace) record() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end == nil {
		return
	}
	if r.claimed.IsZero() {
		r.claimed = r.ended
	}
	run := tracing.Span{Name: "run", Began: r.claimed, Ended: r.ended, Failed: string(r.end.Detail.ErrorCode), Attributes: append(r.about, attribute.String("tendril.run.status", string(r.end.Status)))}
	if r.dropped > 0 {
		run.Attributes = append(run.Attributes, attribute.Int("tendril.spans.dropped", r.dropped))
	}
	if last := len(r.stages) - 1; last >= 0 && r.stages[last].Ended.IsZero() {
		r.stages[last].Ended = r.ended
		r.stages[last].Failed = run.Failed
	}
	if r.queued >= 0 {
		run.Children = append(run.Children, tracing.Span{Name: "queue wait", Began: r.claimed.Add(-r.queued), Ended: r.claimed})
	}
	run.Children = append(run.Children, r.placed()...)
	if r.chunks > 0 {
		r.logs.Attributes = []attribute.KeyValue{attribute.Int("tendril.log.chunks", r.chunks), attribute.Int64("tendril.log.bytes", r.bytes)}
		run.Children = append(run.Children, r.logs)
	}
	run.Children = append(run.Children, r.calls...)
	r.end = nil
	r.tracer.Record(tracing.Into(tracing.WithTrace(context.Background(), r.provision), r.traceparent), run)
}

// placed returns the stages, each with the parts that began in it.
func (r *runTrace) placed() []tracing.Span {
	if len(r.stages) == 0 {
		return r.parts
	}
	for _, part := range r.parts {
		at := 0
		for i, stage := range slices.Backward(r.stages) {
			if !part.Began.Before(stage.Began) {
				at = i
				break
			}
		}
		r.stages[at].Children = append(r.stages[at].Children, part)
	}
	return r.stages
}
