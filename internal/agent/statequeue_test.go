package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/statechain"
)

// putter is a queue that only takes blobs.
type putter struct {
	queue.Queue
	err  error
	puts []string
	last queue.Blob
}

// AppendLog has lost all that it had.
func (p *putter) AppendLog(context.Context, uuid.UUID, int64, []provision.LogChunk) (int64, error) {
	return 1, nil
}

func (p *putter) PutBlob(_ context.Context, _ uuid.UUID, blob queue.Blob, data []byte) error {
	p.last = blob
	p.puts = append(p.puts, fmt.Sprint(blob.Number, " ", string(data)))
	return p.err
}

func newStateQueue(t *testing.T) (*stateQueue, *putter) {
	t.Helper()
	dir, err := openDataDir(t.TempDir(), "one")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(dir.close)
	key, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	p := &putter{}
	log := slog.New(slog.DiscardHandler)
	to := &deliveries{dir: dir, notes: workspaceNotes{dir, log}, queue: p, keys: &keys{own: key}, ctx: t.Context()}
	s := &claimFiles{dir: dir, claim: uuid.New(), about: claimAbout{Workspace: uuid.New()}}
	return &stateQueue{to: to, spool: s, log: log}, p
}

// wrote is the report of a write, into a slot that has something now.
func (q *stateQueue) wrote(t *testing.T, number int64, content, now string) error {
	t.Helper()
	slot := int(number % 2)
	if err := os.WriteFile(q.spool.path(stateSuffixes[slot]), []byte(now), 0o600); err != nil {
		t.Fatal(err)
	}
	report := provision.Report{Status: provision.Processing, Detail: provision.Detail{StateWrite: &provision.StateWrite{
		Number: number, Slot: slot, Digest: statechain.Digest([]byte(content)),
	}}}
	stored, err := q.report(&report)
	if !stored {
		t.Errorf("a report of a write was passed on to the database")
	}
	return err
}

func TestOverwrittenSlotIsPassedOver(t *testing.T) {
	t.Parallel()
	q, p := newStateQueue(t)
	for n, now := range []string{"third", "second"} { // the first one's slot has the third
		if err := q.wrote(t, int64(n+1), []string{"first", "second"}[n], now); err != nil {
			t.Fatalf("report() = %v, want nil", err)
		}
	}
	end := provision.Report{Status: provision.Success}
	if stored, err := q.report(&end); stored || err != nil || end.Status != provision.Success || strings.Join(p.puts, ", ") != "2 second" {
		t.Errorf("stored %q, end %s, want the second alone and a success", p.puts, end.Status)
	}
	if k, err := q.to.notes.read(q.spool.about.Workspace); err != nil || k.Version != 2 {
		t.Errorf("known = %+v, %v, want version 2", k, err)
	}
	// Where nothing follows, it is lost, and nobody may think that all is well.
	if err := q.wrote(t, 3, "third", "torn"); err != nil {
		t.Fatalf("report() = %v, want nil", err)
	}
	if _, err := q.report(&end); err != nil || end.Status != provision.Failed || end.Detail.ErrorCode != provision.CodeStateUnsaved {
		t.Errorf("end = %s/%s, %v, want FAILED/state_unsaved", end.Status, end.Detail.ErrorCode, err)
	}
}

func TestRefusedStates(t *testing.T) {
	t.Parallel()
	q, p := newStateQueue(t)
	for code, reason := range map[string]string{
		"PT409": "state_moved", "PT413": "blob_too_large", "PT422": "bad_blob", "22000": "", "54000": "",
		"PT429": "cluster_blobs_full", // there is no room for it now
	} {
		p.err = queue.Answer("store a state", code, "no", reason, "")
		if err := q.wrote(t, 1, "sealed", "sealed"); queue.KindOf(err) != queue.Unavailable {
			t.Errorf("report() of what is refused as %s = %v, want an error after which it is tried again", code, err)
		}
	}
	p.err = &queue.Error{Kind: queue.ClaimLost, Code: "PT409", Reason: "claim_lost", Message: "the workspace was released"}
	if err := q.wrote(t, 1, "sealed", "sealed"); queue.KindOf(err) != queue.ClaimLost {
		t.Errorf("report() under a lost claim = %v, want that it is lost", err)
	}
	kept, err := os.ReadFile(q.to.dir.path("rejected", q.spool.claim.String()+".state.age"))
	if err != nil || string(kept) != "sealed" {
		t.Errorf("kept = %q, %v, want the state", kept, err)
	}
}

// A state that cannot be stored and is nowhere else outlives its spool.
func TestStateThatIsNowhereElseIsKept(t *testing.T) {
	t.Parallel()
	q, _ := newStateQueue(t)
	if err := q.wrote(t, 1, "whole", "half"); err != nil {
		t.Fatalf("report() = %v, want nil", err)
	}
	if err := q.spool.remove(); err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile(q.to.dir.path("rejected", q.spool.claim.String()+stateSuffixes[1]))
	if err != nil || string(kept) != "half" {
		t.Errorf("kept = %q, %v, want what is left of the state", kept, err)
	}
	if err := q.wrote(t, 2, "whole", "whole"); err != nil {
		t.Fatalf("report() = %v, want nil", err)
	}
	if err := q.spool.remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(q.to.dir.path("rejected", q.spool.claim.String()+stateSuffixes[0])); !os.IsNotExist(err) {
		t.Errorf("a state that is stored is kept as well, or %v", err)
	}
}

// A database that was restored while a run went on gets the newest state again
// before the run ends.
func TestStateIsStoredAgainInARestoredDatabase(t *testing.T) {
	t.Parallel()
	q, p := newStateQueue(t)
	for n := range int64(2) {
		if err := q.wrote(t, n+1, fmt.Sprint("state", n+1), fmt.Sprint("state", n+1)); err != nil {
			t.Fatalf("report() = %v, want nil", err)
		}
	}
	next, err := patientQueue{Queue: p, states: q, watch: &watch{observer: unobserved{}}}.AppendLog(t.Context(), q.spool.claim, 7, nil)
	if next != 1 || err != nil {
		t.Fatalf("AppendLog() = %d, %v", next, err)
	}
	end := provision.Report{Status: provision.Success}
	if stored, err := q.report(&end); stored || err != nil {
		t.Fatalf("report() of the end = %v, %v, want that it goes on to the database", stored, err)
	}
	if got := strings.Join(p.puts, ", "); got != "1 state1, 2 state2, 2 state2" {
		t.Errorf("stored %s, want the second again", got)
	}
}

// While identities are rotated, some agents have none but the older one.
func TestStateIsSignedForAllAgents(t *testing.T) {
	t.Parallel()
	q, p := newStateQueue(t)
	older := generated(t)
	q.to.keys.own = append(q.to.keys.own, older...)
	q.to.keys.cluster = older.Public()
	recipient, err := seal.ParseRecipient(older.Public())
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := seal.To(recipient, []byte("a state"))
	if err != nil {
		t.Fatal(err)
	}
	if err := q.wrote(t, 1, string(sealed), string(sealed)); err != nil {
		t.Fatalf("report() = %v, want nil", err)
	}
	other := &managedStates{keys: &keys{own: older}, notes: q.to.notes}
	if _, state, err := other.open(provision.Assignment{WorkspaceID: q.spool.about.Workspace, Workspace: q.spool.about.Name}, p.last, sealed); err != nil || string(state) != "a state" {
		t.Errorf("open() by an agent with the older identity = %q, %v, want the state", state, err)
	}
}
