package delivery

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

var (
	errAway      = &queue.Error{Kind: queue.Unavailable, Message: "the database is away"}
	errLostReply = errors.New("the reply was lost")
)

// memQueue keeps what a database would. A fault decides the fate of each call:
// an error before it (errAway), after it (errLostReply), or none.
type memQueue struct {
	mu      sync.Mutex
	chunks  []provision.LogChunk
	reports []provision.Report
	order   []string // "chunk 1", "report apply"; in the order of storing
	appends []int    // how many chunks each call carried
	fault   func(call string) error
}

func (q *memQueue) AppendLog(ctx context.Context, _ uuid.UUID, first int64, chunks []provision.LogChunk) (int64, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.appends = append(q.appends, len(chunks))
	fault := q.faultOf(ctx, fmt.Sprintf("append %d", first))
	if fault != nil && !errors.Is(fault, errLostReply) {
		return 0, fault
	}
	var size int
	for i, c := range chunks {
		size += len(c.Text)
		if c.Text == "" || len(c.Text) > provision.MaxChunk || strings.Contains(c.Text, "\x00") {
			return 0, &queue.Error{Kind: queue.Refused, Message: "no such chunk is stored"}
		}
		if first+int64(i) == int64(len(q.chunks))+1 {
			q.chunks = append(q.chunks, c)
			q.order = append(q.order, fmt.Sprintf("chunk %d", len(q.chunks)))
		}
	}
	if size > provision.MaxBatch || len(chunks) > provision.MaxBatchChunks {
		return 0, &queue.Error{Kind: queue.Refused, Message: "too much for a call"}
	}
	return int64(len(q.chunks)) + 1, fault
}

func (q *memQueue) Report(ctx context.Context, _ uuid.UUID, r provision.Report) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	name := string(r.Detail.Stage)
	if r.Status.EndsRun() {
		name = string(r.Status)
	}
	fault := q.faultOf(ctx, "report "+name)
	if fault == nil || errors.Is(fault, errLostReply) {
		q.reports = append(q.reports, r)
		q.order = append(q.order, "report "+name)
	}
	return fault
}

func (q *memQueue) faultOf(ctx context.Context, call string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if q.fault == nil {
		return nil
	}
	return q.fault(call)
}

// carried returns how many chunks all calls carried together.
func (q *memQueue) carried() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, chunks := range q.appends {
		n += chunks
	}
	return n
}

func (q *memQueue) text() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	var b strings.Builder
	for _, c := range q.chunks {
		b.WriteString(c.Text)
	}
	return b.String()
}

func (q *memQueue) happened() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return strings.Join(q.order, ", ")
}

// unreliable fails some calls before and some after they are done.
func unreliable(r *rand.Rand) func(string) error {
	return func(string) error {
		switch r.IntN(6) {
		case 0:
			return errAway
		case 1:
			return errLostReply
		default:
			return nil
		}
	}
}

// once fails the first call of a name and lets all others pass.
func once(name string, fault error) func(string) error {
	failed := false
	return func(call string) error {
		if failed || call != name {
			return nil
		}
		failed = true
		return fault
	}
}

// always fails every call of a name.
func always(name string, fault error) func(string) error {
	return func(call string) error {
		if call == name {
			return fault
		}
		return nil
	}
}

// closed is a done channel of a child that is dead.
func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// run delivers a dead child's spool.
func run(t *testing.T, p *Pump) Delivered {
	t.Helper()
	d, err := p.Run(t.Context(), nil, closed())
	if err != nil {
		t.Fatalf("Run() = %+v, %v", d, err)
	}
	return d
}
