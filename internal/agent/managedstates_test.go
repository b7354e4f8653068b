package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/statechain"
)

// rows is a database that answers whatever it likes: the states that it was given.
type rows struct {
	queue.Queue
	blobs  map[int64]queue.Blob
	sealed map[int64][]byte
	newest int64
}

func newRows() *rows { return &rows{blobs: map[int64]queue.Blob{}, sealed: map[int64][]byte{}} }

func (r *rows) copy() *rows {
	c := newRows()
	c.newest = r.newest
	for n := range r.blobs {
		c.blobs[n], c.sealed[n] = r.blobs[n], r.sealed[n]
	}
	return c
}

func (r *rows) GetBlob(_ context.Context, _ uuid.UUID, _ string, number int64) (queue.Blob, []byte, error) {
	if number == 0 {
		number = r.newest
	}
	if _, ok := r.blobs[number]; !ok {
		return queue.Blob{}, nil, queue.ErrNoBlob
	}
	return r.blobs[number], r.sealed[number], nil
}

func (r *rows) PutBlob(_ context.Context, _ uuid.UUID, blob queue.Blob, sealed []byte) error {
	r.blobs[blob.Number], r.sealed[blob.Number], r.newest = blob, sealed, max(r.newest, blob.Number)
	return nil
}

// keeper is an agent of a cluster, in front of rows that may be exchanged.
type keeper struct {
	t     *testing.T
	keys  *keys
	notes workspaceNotes
}

func newKeeper(t *testing.T, key seal.Identities) *keeper {
	t.Helper()
	dir, err := openDataDir(t.TempDir(), "one")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(dir.close)
	return &keeper{t, &keys{own: key}, workspaceNotes{dir, slog.New(slog.DiscardHandler)}}
}

// begin is what a run does before it has a child: the workspace is recognised, its
// newest state read, and its name noted.
func (k *keeper) begin(r *rows, a provision.Assignment, t trusted) (version int64, err error) {
	k.t.Helper()
	if err := k.notes.check(a); err != nil {
		return 0, err
	}
	blob, _, err := (&managedStates{queue: r, keys: k.keys, notes: k.notes}).newest(k.t.Context(), a, t)
	if err == nil {
		err = k.notes.noteName(a)
	}
	return blob.Number, err
}

// run begins and stores so many states.
func (k *keeper) run(r *rows, a provision.Assignment, writes int) error {
	k.t.Helper()
	version, err := k.begin(r, a, trusted{})
	if err != nil {
		return err
	}
	return k.write(r, a, version, writes)
}

func (k *keeper) write(r *rows, a provision.Assignment, version int64, writes int) error {
	k.t.Helper()
	dir := k.notes.dir
	q := &stateQueue{
		to:    &deliveries{queue: r, dir: dir, keys: k.keys, notes: k.notes, ctx: k.t.Context()},
		spool: &claimFiles{dir: dir, claim: uuid.New(), about: claimAbout{Workspace: a.WorkspaceID, Name: a.Workspace}},
		log:   k.notes.log,
	}
	recipient, err := seal.ParseRecipient(k.keys.held().Public())
	if err != nil {
		k.t.Fatal(err)
	}
	for n := range writes {
		sealed, err := seal.To(recipient, fmt.Appendf(nil, `{"version": 4, "serial": %d}`, version))
		if err != nil {
			k.t.Fatal(err)
		}
		slot := n % 2
		if err := durable.WriteFile(q.spool.path(stateSuffixes[slot]), sealed); err != nil {
			k.t.Fatal(err)
		}
		version++
		if err := q.store(provision.StateWrite{Number: version, Slot: slot, Digest: statechain.Digest(sealed), Serial: uint64(version)}); err != nil {
			return err
		}
	}
	return nil
}

func assignment(t *testing.T, id uuid.UUID, name string) provision.Assignment {
	t.Helper()
	snapshot, err := json.Marshal(map[string]any{
		"template_source": map[string]any{"repo": "https://git.example/t", "version": "v1"}, "workspace": name,
	})
	if err != nil {
		t.Fatal(err)
	}
	return provision.Assignment{ClaimID: uuid.New(), WorkspaceID: id, Workspace: name, Operation: provision.OperationApply, Snapshot: snapshot}
}

func wantRefusal(t *testing.T, what string, err error, code provision.Code, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no refusal, want %s", what, code)
		return
	}
	failure := provision.AsFailure(err)
	if failure.Code != code {
		t.Errorf("%s: %s (%s), want %s", what, failure.Code, failure.Message, code)
	}
	for _, word := range words {
		if !strings.Contains(failure.Message, word) {
			t.Errorf("%s: %q, want %q in it", what, failure.Message, word)
		}
	}
}

// The versions of a state form a chain. Whatever rows the database shows, an agent
// goes on from the state that it knows or from one that came after it.
func TestForksAndStepsBackAreRefused(t *testing.T) {
	t.Parallel()
	key, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	one, two := newKeeper(t, key), newKeeper(t, key)
	a := assignment(t, uuid.New(), "acme/prod")
	db := newRows()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(one.run(db, a, 3))
	early := db.copy()
	must(two.run(db, a, 2)) // two has seen 3, and has written 4 and 5
	must(one.run(db, a, 2)) // one goes on from 5, which it has not seen
	must(two.run(db, a, 0))

	wantRefusal(t, "a step back", two.run(early, a, 0), provision.CodeStateInvalid, "step back", "version 3", "version 7", "tendril workspaces accept")
	_, err = two.begin(newRows(), a, trusted{})
	wantRefusal(t, "no state at all", err, provision.CodeStateInvalid, "step back")

	// The database hides from a third agent what the others have written, and shows
	// the state that this makes to them: with the same number, and with higher ones.
	three := newKeeper(t, key)
	fork := early.copy()
	must(three.run(fork, a, 4))
	wantRefusal(t, "a fork of the same version", two.run(fork.copy(), a, 0), provision.CodeStateInvalid, "fork", "version 7")
	must(three.run(fork, a, 3))
	wantRefusal(t, "a longer fork", two.run(fork, a, 0), provision.CodeStateInvalid, "fork", "did not come after version 7")
	wantRefusal(t, "a longer fork, the other agent", one.run(fork, a, 0), provision.CodeStateInvalid, "fork")

	// A MAC that was changed, or is another version's, is no state at all.
	forged := db.copy()
	blob := forged.blobs[7]
	blob.Number = 8
	forged.blobs[8], forged.sealed[8], forged.newest = blob, forged.sealed[7], 8
	wantRefusal(t, "an old state under a new number", two.run(forged, a, 0), provision.CodeStateInvalid, "was not made by an agent")
	swapped := db.copy()
	swapped.sealed[7] = swapped.sealed[3]
	wantRefusal(t, "another content", two.run(swapped, a, 0), provision.CodeStateInvalid, "was not made by an agent")

	// What is genuine goes on, after a restart as well.
	must(two.run(db, a, 1))
	again := &keeper{t, two.keys, two.notes}
	wantRefusal(t, "a step back after a restart", again.run(early, a, 0), provision.CodeStateInvalid, "step back")
	must(again.run(db, a, 1))

	// The operator's word is obeyed once.
	if err := Accept(two.notes.dir.root, a.WorkspaceID, Acceptance{Name: a.Workspace, State: early.blobs[3].Digest}); err != nil {
		t.Fatal(err)
	}
	must(two.run(early, a, 1))
	wantRefusal(t, "the other one, from then on", two.run(db, a, 0), provision.CodeStateInvalid)
	// The states that the other agents have seen are in its past.
	must(three.notes.write(a.WorkspaceID, known{Name: a.Workspace, Version: 3, Digest: early.blobs[3].Digest}))
	must(three.run(early, a, 0))
}

// An agent that has seen nothing of hundreds of runs recognises the state that it
// knows among their ancestors, up to a bound.
func TestChainOfManyRuns(t *testing.T) {
	t.Parallel()
	key, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	one, two, three := newKeeper(t, key), newKeeper(t, key), newKeeper(t, key)
	a := assignment(t, uuid.New(), "acme/prod")
	db := newRows()
	if err := one.run(db, a, 1); err != nil {
		t.Fatal(err)
	}
	for n := range statechain.MaxAncestors {
		if n == 5 {
			if err := three.run(db, a, 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := two.run(db, a, 2); err != nil {
			t.Fatal(err)
		}
	}
	if err := one.run(db, a, 0); err != nil {
		t.Errorf("after %d runs of another agent: %v", statechain.MaxAncestors, err)
	}
	if size := len(db.blobs[db.newest].Meta); size > 4096 {
		t.Errorf("what goes with a state has %d bytes, the database takes 4096", size)
	}
	for range 10 {
		if err := two.run(db, a, 1); err != nil {
			t.Fatal(err)
		}
	}
	wantRefusal(t, "after more runs than the chain has", three.run(db, a, 0), provision.CodeStateInvalid, "tendril workspaces accept")
}

// While a cluster's agents are replaced, those of an earlier version store states that
// say neither a name nor what they came after. They count until a state of today does.
func TestStatesOfAgentsOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	key, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	one, two := newKeeper(t, key), newKeeper(t, key)
	a, db := assignment(t, uuid.New(), "acme/prod"), newRows()
	earlier := func() {
		t.Helper()
		number := db.newest + 1
		recipient, err := seal.ParseRecipient(key.Public())
		if err != nil {
			t.Fatal(err)
		}
		sealed, err := seal.To(recipient, fmt.Appendf(nil, `{"version": 4, "serial": %d}`, number))
		if err != nil {
			t.Fatal(err)
		}
		blob, meta := queue.Blob{Kind: queue.BlobState, Number: number, Digest: statechain.Digest(sealed)}, statechain.Meta{Serial: uint64(number)}
		meta.Sign(key, a.WorkspaceID, number, blob.Digest)
		if blob.Meta, err = json.Marshal(meta); err != nil {
			t.Fatal(err)
		}
		db.blobs[number], db.sealed[number], db.newest = blob, sealed, number
	}
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	earlier()
	must("one reads the first", one.run(db, a, 0))
	earlier()
	must("two goes on from the second", two.run(db, a, 1))
	must("one, which has not seen the second", one.run(db, a, 1))
	must("two", two.run(db, a, 0))
	earlier()
	wantRefusal(t, "a state without a chain after one with", two.run(db, a, 0), provision.CodeStateInvalid, "fork")
}
