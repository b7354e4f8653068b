package agent

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/trust"
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
	t *testing.T
	b *boot
}

func newKeeper(t *testing.T, key seal.Identities) *keeper {
	t.Helper()
	dir, err := openDataDir(t.TempDir(), "one")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(dir.close)
	return &keeper{t, &boot{dir: dir, keys: &keys{own: key}, delivery: t.Context(), log: slog.New(slog.DiscardHandler)}}
}

// begin is what a run does before it has a child: the workspace is recognised, its
// newest state read, and its name noted.
func (k *keeper) begin(r *rows, a provision.Assignment, t trusted) (version int64, err error) {
	k.t.Helper()
	k.b.queue = r
	if err := k.b.recognise(a); err != nil {
		return 0, err
	}
	blob, _, err := k.b.newestState(k.t.Context(), a, t)
	if err == nil {
		err = k.b.acquaint(a)
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
	q := k.b.statesOf(&spool{dir: k.b.dir, claim: uuid.New(), about: spoolAbout{Workspace: a.WorkspaceID, Name: a.Workspace}}, k.b.log)
	recipient, err := seal.ParseRecipient(k.b.keys.held().Public())
	if err != nil {
		k.t.Fatal(err)
	}
	for n := range writes {
		sealed, err := seal.To(recipient, fmt.Appendf(nil, `{"version": 4, "serial": %d}`, version))
		if err != nil {
			k.t.Fatal(err)
		}
		slot := n % 2
		if err := writeFile(q.spool.path(stateSuffixes[slot]), sealed); err != nil {
			k.t.Fatal(err)
		}
		version++
		if err := q.store(provision.StateWrite{Number: version, Slot: slot, Digest: hex.EncodeToString(sha256Of(sealed)), Serial: uint64(version)}); err != nil {
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
	again := &keeper{t, &boot{dir: two.b.dir, keys: two.b.keys, delivery: t.Context(), log: two.b.log}}
	wantRefusal(t, "a step back after a restart", again.run(early, a, 0), provision.CodeStateInvalid, "step back")
	must(again.run(db, a, 1))

	// The operator's word is obeyed once.
	if err := Accept(two.b.dir.root, a.WorkspaceID, Acceptance{Name: a.Workspace, State: early.blobs[3].Digest}); err != nil {
		t.Fatal(err)
	}
	must(two.run(early, a, 1))
	wantRefusal(t, "the other one, from then on", two.run(db, a, 0), provision.CodeStateInvalid)
	// The states that the other agents have seen are in its past.
	must(three.b.dir.remember(a.WorkspaceID, known{Name: a.Workspace, Version: 3, Digest: early.blobs[3].Digest}))
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
	for n := range maxAncestors {
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
		t.Errorf("after %d runs of another agent: %v", maxAncestors, err)
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
		blob, meta := queue.Blob{Kind: queue.BlobState, Number: number, Digest: hex.EncodeToString(sha256Of(sealed))}, stateMeta{Serial: uint64(number)}
		meta.MAC = key.Sign(statePurpose, stateMessage(a.WorkspaceID, number, blob.Digest, meta))
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

// Name and id of a workspace stay together, whatever the rows say: for an agent that
// remembers them, and by the state's word for one that does not.
func TestWorkspacesAreRecognised(t *testing.T) {
	t.Parallel()
	key, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	k, fresh := newKeeper(t, key), newKeeper(t, key)
	dev, db := assignment(t, uuid.New(), "dev/x"), newRows()
	prod := assignment(t, uuid.New(), "prod")
	if err := k.run(db, dev, 1); err != nil {
		t.Fatal(err)
	}
	if err := k.run(newRows(), prod, 1); err != nil {
		t.Fatal(err)
	}
	snapshot := dev
	snapshot.Workspace = "prod"
	wantRefusal(t, "a snapshot for another workspace", k.b.recognise(snapshot), provision.CodeWorkspaceChanged, "dev/x", "prod")
	renamed := assignment(t, dev.WorkspaceID, "prod")
	wantRefusal(t, "dev is called prod", k.run(db, renamed, 0), provision.CodeWorkspaceChanged, "dev/x", "prod", "tendril workspaces accept "+dev.WorkspaceID.String())
	other := assignment(t, dev.WorkspaceID, "other")
	wantRefusal(t, "dev has another name", k.run(db, other, 0), provision.CodeWorkspaceChanged, "dev/x", "other")
	wantRefusal(t, "prod is another workspace", k.run(newRows(), assignment(t, uuid.New(), "prod"), 0), provision.CodeWorkspaceChanged, prod.WorkspaceID.String())
	wantRefusal(t, "an agent without notes", fresh.run(db, other, 0), provision.CodeWorkspaceChanged, "is that of workspace dev/x")
	if err := fresh.run(db, dev, 0); err != nil {
		t.Errorf("an agent without notes, once the name is right again: %v", err)
	}
	unusual := assignment(t, uuid.New(), "acme/prod; reboot")
	wantRefusal(t, "a name that no workspace can have", k.b.recognise(unusual), provision.CodeWorkspaceChanged, "may hold letters")

	// A word for another name is none.
	if err := Accept(k.b.dir.root, dev.WorkspaceID, Acceptance{Name: "prod/x"}); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, "accepted as another", k.run(db, other, 0), provision.CodeWorkspaceChanged)
	for _, agent := range []*keeper{k, newKeeper(t, key)} {
		if err := Accept(agent.b.dir.root, dev.WorkspaceID, Acceptance{Name: "other"}); err != nil {
			t.Fatal(err)
		}
		if err := agent.run(db, other, 1); err != nil {
			t.Errorf("once it is accepted: %v", err)
		}
		if err := agent.run(db, other, 0); err != nil {
			t.Errorf("from then on: %v", err)
		}
	}
	wantRefusal(t, "the former name", k.run(db, dev, 0), provision.CodeWorkspaceChanged)

	// What cannot be read is not taken for nothing.
	if err := writeFile(k.b.dir.knownPath(prod.WorkspaceID), []byte("{")); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, "a damaged note", k.run(newRows(), prod, 0), provision.CodeWorkspaceChanged, "cannot be read")
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
		k.b.options.Requesters = func() (*trust.Keyring, error) {
			if !names {
				return &trust.Keyring{}, nil
			}
			return trust.ParseKeys([]string{"acme/*: " + ada.SignerKey()}, nil)
		}
		return newRun(k.b, asked).trusted()
	}
	upload := uuid.NewString()
	push := sign(trust.Order{Command: "push", Over: 4, Digest: hex.EncodeToString(sha256Of([]byte("a state")))})
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
