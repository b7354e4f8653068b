package agent

import (
	"context"
	"encoding/json"
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
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/statechain"
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
	o := Options{Log: slog.New(slog.DiscardHandler)}
	o.Settings.State.Default = job.Managed
	b := newBoot(New(o), workspaceDirs{dir: dir}, q, nil, &keys{own: generated(t)})
	b.deliveries.ctx = t.Context()
	return newRun(b, provision.Assignment{
		ClaimID: uuid.New(), WorkspaceID: uuid.New(), Workspace: "w", Operation: provision.OperationApply,
		Snapshot: fmt.Appendf(nil, `{"template_source": {"repo": "https://git.example/t", "version": "v1"}, "workspace": "w"%s}`, snapshot),
	}), q
}

// A run that has not begun waits for the database, until somebody says otherwise.
func TestDatabaseAwayBeforeARun(t *testing.T) {
	t.Parallel()
	r, _ := fetching(t, 2, "")
	f, err := r.fetch(r.boot.given)
	if err != nil || f.managed == nil || f.key == "" {
		t.Fatalf("fetch() = %+v, %v, want no state, once the database is there", f, err)
	}
	closeAll(f.stateIn)

	r, q := fetching(t, 1<<30, "")
	go func() {
		<-q.asked
		r.stop(job.StopCancelled)
	}()
	if _, err := r.fetch(r.boot.given); !errors.Is(err, errStopped) {
		t.Errorf("fetch() of a run that is cancelled = %v, want that it was stopped", err)
	}
	if got := neverFetched(r.stopReason()); got.Status != provision.Cancelled {
		t.Errorf("a cancelled run ends as %s/%s, want CANCELLED", got.Status, got.Detail.ErrorCode)
	}

	r, _ = fetching(t, 1<<30, `, "timeout_seconds": 1`)
	if _, err := r.fetch(r.boot.given); !errors.Is(err, errStopped) {
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
	over := patientQueue{q, &ended.progress, nil, &stateQueue{}, &placeQueue{}, &watch{observer: unobserved{}}}
	if err := over.Report(t.Context(), ended.assignment.ClaimID, provision.Report{Status: provision.Success}); err != nil {
		t.Fatal(err)
	}
	b, asked := working.boot, uuid.New()
	b.inflight.hold(working.assignment.ClaimID, working)
	b.inflight.hold(ended.assignment.ClaimID, ended)
	b.inflight.hold(asked, nil)
	h := b.newHeartbeat(queue.Registration{Heartbeat: time.Second}, nil)
	if got := h.obey(queue.Pulse{Lost: []uuid.UUID{asked, working.assignment.ClaimID, ended.assignment.ClaimID, uuid.New()}}, b.inflight.held()); got != 1 {
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
		r.boot.inputs.queue, r.boot.inputs.states.queue = lostClaim{}, lostClaim{}
		change(&r.assignment)
		if what == "upload" {
			order, err := ada.Order(trust.Order{Workspace: r.assignment.WorkspaceID, Name: "w", Command: "push", Until: time.Now().Add(time.Hour)})
			if err != nil {
				t.Fatal(err)
			}
			r.assignment.Snapshot = fmt.Appendf(nil, `{"template_source": {"repo": "https://git.example/t", "version": "v1"}, "workspace": "w", "state": {"command": "push", "upload": %q, "order": %q}}`, uuid.NewString(), order)
			r.boot.inputs.requesters = func() (*trust.Keyring, error) { return trust.ParseKeys([]string{ada.SignerKey()}, nil) }
		}
		if _, err := r.fetch(r.boot.given); !errors.Is(err, errStopped) {
			t.Errorf("%s: fetch() of a run whose claim is lost = %v, want that it was stopped", what, err)
		}
		if got := neverFetched(r.stopReason()); got.Detail.ErrorCode != provision.CodeAgentLost {
			t.Errorf("%s: the run ends as %s/%s, want FAILED/agent_lost", what, got.Status, got.Detail.ErrorCode)
		}
	}
}

// A state is replaced only by the order of somebody whom the configuration names:
// for that content, over that version, once.
func TestOrders(t *testing.T) {
	t.Parallel()
	key, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	ada, err := trust.NewPerson()
	if err != nil {
		t.Fatal(err)
	}
	k := newKeeper(t, key)
	a, db := assignment(t, uuid.New(), "acme/prod"), newRows()
	if err := k.run(db, a, 2); err != nil {
		t.Fatal(err)
	}
	early := db.copy()
	if err := k.run(db, a, 2); err != nil {
		t.Fatal(err)
	}
	sign := func(o trust.Order) string {
		o.Workspace, o.Name, o.Until = a.WorkspaceID, a.Workspace, time.Now().Add(time.Hour)
		text, err := ada.Order(o)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	ask := func(names bool, command map[string]any) (trusted, error) {
		asked := a
		asked.Operation = provision.OperationState
		asked.Snapshot, err = json.Marshal(map[string]any{
			"template_source": map[string]any{"repo": "https://git.example/t", "version": "v1"}, "workspace": a.Workspace, "state": command,
		})
		if err != nil {
			t.Fatal(err)
		}
		i := &inputs{requesters: func() (*trust.Keyring, error) {
			if !names {
				return &trust.Keyring{}, nil
			}
			return trust.ParseKeys([]string{"acme/*: " + ada.SignerKey()}, nil)
		}}
		return i.trusted(asked)
	}
	upload := uuid.NewString()
	push := sign(trust.Order{Command: "push", Over: 4, Digest: statechain.Digest([]byte("a state"))})
	back := sign(trust.Order{Command: "rollback", Version: 1, Over: 4})
	for name, command := range map[string]map[string]any{
		"a push without an order":     {"command": "push", "upload": upload},
		"a rollback without an order": {"command": "rollback", "version": 1},
		"an order for a rollback":     {"command": "push", "upload": upload, "order": back},
		"an order for a push":         {"command": "rollback", "version": 1, "order": push},
		"another version":             {"command": "rollback", "version": 2, "order": back},
	} {
		_, err := ask(true, command)
		wantRefusal(t, name, err, provision.CodeOperationRefused, "signed order")
	}
	_, err = ask(false, map[string]any{"command": "push", "upload": upload, "order": push})
	wantRefusal(t, "somebody who is not named", err, provision.CodeOperationRefused, "does not name the key")

	ordered, err := ask(true, map[string]any{"command": "push", "upload": upload, "order": push})
	if err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, "another content", ordered.brought([]byte("another state")), provision.CodeOperationRefused, "is not the state that was signed")
	if err := ordered.brought([]byte("a state")); err != nil {
		t.Error(err)
	}
	if version, err := k.begin(db, a, ordered); err != nil || version != 4 {
		t.Errorf("begin() = version %d, %v, want 4", version, err)
	}
	if err := k.write(db, a, 4, 1); err != nil {
		t.Fatal(err)
	}
	_, err = k.begin(db, a, ordered)
	wantRefusal(t, "the order a second time", err, provision.CodeOperationRefused, "version 4", "version 5")

	// After a restore, an order says which state counts, and others follow.
	ordered, err = ask(true, map[string]any{"command": "rollback", "version": 2, "order": sign(trust.Order{Command: "rollback", Version: 2, Over: 2})})
	if err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, "a restored database", k.run(early, a, 0), provision.CodeStateInvalid, "step back")
	if _, err := k.begin(early, a, ordered); err != nil {
		t.Fatalf("begin() with an order over the restored version = %v", err)
	}
	if err := k.write(early, a, 5, 1); err != nil {
		t.Fatal(err)
	}
	if err := k.run(early, a, 1); err != nil {
		t.Errorf("the next run = %v", err)
	}
}
