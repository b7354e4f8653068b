package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/spool"
)

// delivering is a spool of a child that lives, and what delivers it to a queue.
func delivering(t *testing.T, q queue.Queue) (*deliveries, *claimFiles, *spool.Writer) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	dir := openTestDir(t, t.TempDir())
	s, files, err := newClaimFiles(dir, provision.Assignment{ClaimID: uuid.New(), ProvisionID: uuid.New(), WorkspaceID: uuid.New(), Workspace: "dev/x"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(files.close)
	w := spool.NewWriter(files.lines, nil)
	t.Cleanup(func() { _ = w.Close() })
	d := &deliveries{queue: q, dir: dir, keys: &keys{own: generated(t)}, notes: workspaceNotes{dir, log}, checks: &checkNotes{dir: dir}, retrying: func() {}}
	d.ctx, d.stop = context.WithCancel(t.Context())
	return d, s, w
}

func beginDelivery(d *deliveries, s *claimFiles, p *progress) *ongoing {
	w := &watch{status: &status{}, observer: unobserved{}}
	return d.begin(s, p, slog.New(slog.DiscardHandler), w.run(provision.Assignment{Operation: provision.OperationApply}, nil), nil, func(job.Control) {})
}

// The end counts when the child is dead, and the heartbeat knows of it before the
// database does.
func TestDeliveryOfALivingChild(t *testing.T) {
	t.Parallel()
	var p progress
	var ends atomic.Int32
	d, s, w := delivering(t, reportedQueue{reported: func(r provision.Report) {
		if r.Status.EndsRun() && p.ending.Load() {
			ends.Add(1)
		}
	}})
	one := beginDelivery(d, s, &p)
	w.System("made it")
	if err := errors.Join(w.Update(provision.Report{Status: provision.Success}), w.Close()); err != nil {
		t.Fatal(err)
	}
	close(one.dead)
	if o := <-one.result; o.err != nil || o.Result == nil || o.Result.Status != provision.Success || o.Lines != 1 || ends.Load() != 1 {
		t.Errorf("outcome = %+v after %d ends that the heartbeat knew of, want a success with one line after 1", o, ends.Load())
	}
}

// unreachable is a queue that cannot be reached.
type unreachable struct{ queue.Queue }

func (unreachable) AppendLog(context.Context, uuid.UUID, int64, []provision.LogChunk) (int64, error) {
	return 0, &queue.Error{Kind: queue.Unavailable, Message: "away"}
}

// Deliveries report an outage of the database, and wait until the next start takes over.
func TestDeliveryIsLeftToTheNextStart(t *testing.T) {
	t.Parallel()
	d, s, w := delivering(t, unreachable{})
	retried := make(chan struct{}, 1)
	d.retrying = func() {
		select {
		case retried <- struct{}{}:
		default:
		}
	}
	one := beginDelivery(d, s, &progress{})
	w.System("made it")
	<-retried
	d.stop()
	if o := <-one.result; !errors.Is(o.err, context.Canceled) || o.Result != nil {
		t.Errorf("outcome = %+v, want that the delivery was cancelled", o)
	}
	close(one.dead)

	d.queue = reportedQueue{}
	d.ctx, d.stop = context.WithCancel(t.Context())
	defer d.stop()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	watch := (&watch{status: &status{}, observer: unobserved{}}).leftover(s, nil)
	if o := d.resume(s, nil, slog.New(slog.DiscardHandler), watch); o.err != nil || o.Lines != 1 {
		t.Errorf("resume() = %+v, want the line", o)
	}
}
