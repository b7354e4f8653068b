package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/trust"
)

// away is a queue that gives out blobs, none, once it was asked often enough.
type away struct {
	queue.Queue
	left  atomic.Int32
	asked chan struct{}
}

func (a *away) GetBlob(context.Context, uuid.UUID, string, int64) (queue.Blob, []byte, error) {
	select {
	case a.asked <- struct{}{}:
	default:
	}
	if a.left.Add(-1) < 0 {
		return queue.Blob{}, nil, queue.ErrNoBlob
	}
	return queue.Blob{}, nil, &queue.Error{Kind: queue.Unavailable, Message: "away"}
}

func (*away) Report(context.Context, uuid.UUID, provision.Report) error { return nil }

// fetching is a run that is about to fetch its state from a database that is away
// for the next so many calls.
func fetching(t *testing.T, calls int32, snapshot string) (*run, *away) {
	t.Helper()
	dir, err := openDataDir(t.TempDir(), "one")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(dir.close)
	q := &away{asked: make(chan struct{}, 1)}
	q.left.Store(calls)
	b := &boot{dir: dir, queue: q, keys: &keys{own: generated(t)}, delivery: t.Context(), log: slog.New(slog.DiscardHandler)}
	b.options.Settings.State.Default = job.Managed
	return newRun(b, provision.Assignment{
		ClaimID: uuid.New(), WorkspaceID: uuid.New(), Workspace: "w", Operation: provision.OperationApply,
		Snapshot: fmt.Appendf(nil, `{"template_source": {"repo": "https://git.example/t", "version": "v1"}, "workspace": "w"%s}`, snapshot),
	}), q
}

// A run that has not begun waits for the database, until somebody says otherwise.
func TestDatabaseAwayBeforeARun(t *testing.T) {
	t.Parallel()
	r, _ := fetching(t, 2, "")
	f, err := r.fetch()
	if err != nil || f.managed == nil || f.key == "" {
		t.Fatalf("fetch() = %+v, %v, want no state, once the database is there", f, err)
	}
	closeAll(f.stateIn)

	r, q := fetching(t, 1<<30, "")
	go func() {
		<-q.asked
		r.stop(job.StopCancelled)
	}()
	if _, err := r.fetch(); !errors.Is(err, errStopped) {
		t.Errorf("fetch() of a run that is cancelled = %v, want that it was stopped", err)
	}
	if got := neverFetched(r.stopReason()); got.Status != provision.Cancelled {
		t.Errorf("a cancelled run ends as %s/%s, want CANCELLED", got.Status, got.Detail.ErrorCode)
	}

	r, _ = fetching(t, 1<<30, `, "timeout_seconds": 1`)
	if _, err := r.fetch(); !errors.Is(err, errStopped) {
		t.Errorf("fetch() of a run whose time is over = %v, want that it was stopped", err)
	}
	if got := neverFetched(r.stopReason()); got.Status != provision.Failed || got.Detail.ErrorCode != provision.CodeTimedOut {
		t.Errorf("a run whose time is over ends as %s/%s, want FAILED/timed_out", got.Status, got.Detail.ErrorCode)
	}
}

// Claims that the database does not know any more are lost where somebody works on
// them, and not where that is over or has not begun.
func TestWhatCountsAsLost(t *testing.T) {
	t.Parallel()
	working, _ := fetching(t, 0, "")
	ended, _ := fetching(t, 0, "")
	q := &away{}
	over := patientQueue{q, ended, nil, nil, &watch{boot: &boot{options: Options{Observer: unobserved{}}}}}
	over.states = &stateQueue{}
	if err := over.Report(t.Context(), ended.assignment.ClaimID, provision.Report{Status: provision.Success}); err != nil {
		t.Fatal(err)
	}
	b, asked := working.boot, uuid.New()
	b.hand.hold(working.assignment.ClaimID, working)
	b.hand.hold(ended.assignment.ClaimID, ended)
	b.hand.hold(asked, nil)
	h := newHeart(b, time.Second, nil)
	if got := h.obey(queue.Pulse{Lost: []uuid.UUID{asked, working.assignment.ClaimID, ended.assignment.ClaimID, uuid.New()}}, b.hand.held()); got != 1 {
		t.Errorf("obey() = %d lost, want 1: the one that somebody works on", got)
	}
	if working.stopReason() != job.StopLost || ended.stopReason() != "" {
		t.Errorf("the run that lost its claim was stopped as %q, the one that has ended as %q, want lost and nothing", working.stopReason(), ended.stopReason())
	}
}

// lostClaim is a queue by which the claim is somebody else's.
type lostClaim struct{ queue.Queue }

func (lostClaim) GetBlob(context.Context, uuid.UUID, string, int64) (queue.Blob, []byte, error) {
	return queue.Blob{}, nil, &queue.Error{Kind: queue.ClaimLost, Message: "the claim has lost its lease"}
}

// A run whose claim was lost before it began says that, and nothing of the state,
// the plan or the upload that it did not get: another attempt may still be made.
func TestClaimLostBeforeARun(t *testing.T) {
	t.Parallel()
	ada, err := trust.NewPerson()
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*provision.Assignment){
		"state":  func(*provision.Assignment) {},
		"plan":   func(a *provision.Assignment) { a.ApprovedPlan = strings.Repeat("a", 64) },
		"upload": func(a *provision.Assignment) { a.Operation = provision.OperationState },
	} {
		r, _ := fetching(t, 0, "")
		r.boot.queue = lostClaim{}
		change(&r.assignment)
		if what == "upload" {
			order, err := ada.Order(trust.Order{Workspace: r.assignment.WorkspaceID, Name: "w", Command: "push", Until: time.Now().Add(time.Hour)})
			if err != nil {
				t.Fatal(err)
			}
			r.assignment.Snapshot = fmt.Appendf(nil, `{"template_source": {"repo": "https://git.example/t", "version": "v1"}, "workspace": "w", "state": {"command": "push", "upload": %q, "order": %q}}`, uuid.NewString(), order)
			r.boot.options.Requesters = func() (*trust.Keyring, error) { return trust.ParseKeys([]string{ada.SignerKey()}, nil) }
		}
		if _, err := r.fetch(); !errors.Is(err, errStopped) {
			t.Errorf("%s: fetch() of a run whose claim is lost = %v, want that it was stopped", what, err)
		}
		if got := neverFetched(r.stopReason()); got.Detail.ErrorCode != provision.CodeAgentLost {
			t.Errorf("%s: the run ends as %s/%s, want FAILED/agent_lost", what, got.Status, got.Detail.ErrorCode)
		}
	}
}
