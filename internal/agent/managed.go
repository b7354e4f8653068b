package agent

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/managedstate"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/seal"
)

// statePurpose is what the MAC of a state is for, see seal.Identities.Sign.
const statePurpose = "state"

const stateFormat = 2

// stateMeta is what the database keeps beside a state. The versions of a state form
// a chain: each names its predecessor, under the MAC.
type stateMeta struct {
	// Format is stateFormat; 0 is of agents that knew neither names nor a chain.
	Format  int    `json:"v,omitempty"`
	Serial  uint64 `json:"serial"`
	Lineage string `json:"lineage,omitempty"`
	// Name is the workspace's.
	Name string `json:"name,omitempty"`
	// Previous is the digest of the state that this one came after; "": it is the
	// first. One run may write many versions, of which the database keeps the last:
	// Chain has, shortened, the digests of the states with which the latest runs
	// began, so that an agent that was away recognises the one that it knows.
	Previous string   `json:"previous,omitempty"`
	Chain    ancestry `json:"chain,omitempty"`
	MAC      []byte   `json:"mac"`
}

// follows reports whether a state came after the one of that digest.
func (m stateMeta) follows(digest string) bool {
	return m.Previous == digest || m.Chain.has(digest)
}

// stateMessage is what a MAC of a state is over: whose it is, which version of
// it, and what is in it, as sealed. So nobody who can only write rows can make
// one, give one workspace another's, or have an old one pass for the newest.
func stateMessage(workspace uuid.UUID, version int64, digest string, meta stateMeta) []byte {
	if meta.Format == 0 {
		return fmt.Appendf(nil, "state 1\nworkspace %s\nversion %d\nserial %d\nlineage %q\ndigest %s\n",
			workspace, version, meta.Serial, meta.Lineage, digest)
	}
	return fmt.Appendf(nil, "state %d\nworkspace %s %q\nversion %d\nserial %d\nlineage %q\ndigest %s\nprevious %q\nchain %x\n",
		meta.Format, workspace, meta.Name, version, meta.Serial, meta.Lineage, digest, meta.Previous, []byte(meta.Chain))
}

// stateKey is to what this agent's runs seal: the cluster's key, if it can open
// that itself.
func (b *boot) stateKey() (string, error) {
	switch key, own := b.keys.clusterKey(), b.keys.held(); {
	case key == "":
		return own.Public(), nil
	case own.Holds(key):
		return key, nil
	default:
		return "", provision.Fail(provision.CodeStateInvalid, fmt.Sprintf(
			"The workspace's state is to be sealed to the cluster's key (%s), and this agent has another one (%s): no two agents could read each other's states. Give all agents of the cluster the same identity_file, and have an admin call set_cluster_key with its public half.",
			seal.Fingerprint(key), seal.Fingerprint(own.Public())), nil)
	}
}

// managedState gets the workspace's state for a run that may have a managed one:
// what the run is told, the key it seals to, and a file in memory with the state,
// opened. Nil and an empty file for a run that may not.
func (b *boot) managedState(ctx context.Context, a provision.Assignment, t trusted) (told *job.ManagedState, key string, in *os.File, err error) {
	fd, err := unix.MemfdCreate("state", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, "", nil, fmt.Errorf("make a file in memory: %w", err)
	}
	in = os.NewFile(uintptr(fd), "state")
	defer func() {
		if err != nil {
			closeAll(in)
		}
	}()
	if !b.options.Settings.State.MayBeManaged() {
		return nil, "", in, nil
	}
	if key, err = b.stateKey(); err != nil {
		return nil, "", nil, err
	}
	blob, state, err := b.newestState(ctx, a, t)
	if err != nil {
		return nil, "", nil, err
	}
	k, err := b.dir.recall(a.WorkspaceID)
	if err != nil {
		return nil, "", nil, err
	}
	if _, err := in.Write(state); err != nil {
		return nil, "", nil, fmt.Errorf("hand the state down: %w", err)
	}
	// After a state operation on what is older than was seen, the next version is
	// above both.
	return &job.ManagedState{Version: max(blob.Number, k.Version)}, key, in, nil
}

// fetchState reads a version of a workspace's state from the database, 0 for the
// newest, and opens it when it is one of this cluster's agents'. Where there is
// none both are empty. A database that is away is waited for until ctx ends.
func (b *boot) fetchState(ctx context.Context, a provision.Assignment, version int64) (blob queue.Blob, meta stateMeta, state []byte, err error) {
	var sealed []byte
	err = persist(ctx, func(ctx context.Context) (err error) {
		blob, sealed, err = b.queue.GetBlob(ctx, a.ClaimID, queue.BlobState, version)
		if errors.Is(err, queue.ErrNoBlob) {
			sealed, err = nil, nil
		}
		return patiently(err)
	})
	if err != nil && ctx.Err() != nil {
		return blob, meta, nil, errStopped
	}
	if err != nil {
		return blob, meta, nil, provision.Fail(provision.CodeStateInvalid, fmt.Sprintf("The workspace's state could not be read from the database: %v.", strings.TrimSuffix(err.Error(), ".")), err)
	}
	if sealed == nil {
		return blob, stateMeta{}, nil, nil
	}
	meta, state, err = b.openState(a, blob, sealed)
	return blob, meta, state, err
}

// newestState fetches the newest state, which must be the one that this agent knows
// or come after it. A signed order to replace it vouches for another one.
func (b *boot) newestState(ctx context.Context, a provision.Assignment, t trusted) (queue.Blob, []byte, error) {
	blob, meta, state, err := b.fetchState(ctx, a, 0)
	if err != nil {
		return blob, nil, err
	}
	k, err := b.dir.recall(a.WorkspaceID)
	if err != nil {
		return blob, nil, err
	}
	wrong := func(format string, args ...any) (queue.Blob, []byte, error) {
		return blob, nil, provision.Fail(provision.CodeStateInvalid, fmt.Sprintf(format, args...)+
			" With it, what was made since would be made a second time, or forgotten. Bring the right one in with a signed trellis state push or trellis state rollback, or have the agent's operator accept this one, on the agent's machine: "+
			acceptCommand(a)+" --state "+cmp.Or(blob.Digest, NoState), nil)
	}
	switch {
	case t.order != nil:
		if err := t.replaces(blob); err != nil {
			return blob, nil, err
		}
		if k.Digest != "" && blob.Digest != k.Digest {
			k.Chain = meta.Chain.and(k.Chain.with(k.Digest)) // what other agents have seen is part of what follows
			k.Format, k.Digest, k.Version, k.Claim = meta.Format, blob.Digest, max(k.Version, blob.Number), uuid.Nil
			return blob, state, b.dir.remember(a.WorkspaceID, k)
		}
	case blob.Number < k.Version && looksOnly(a):
		return blob, state, nil // an older state that nobody goes on from
	case blob.Number < k.Version:
		return wrong("State step back: the newest state of the workspace in the database is version %d, and this agent has seen version %d. The database was restored from a backup, or rows were changed or removed.", blob.Number, k.Version)
	case blob.Number == k.Version && k.Digest != "" && blob.Digest != k.Digest:
		return wrong("State fork: version %d of the workspace's state in the database is another one than the version %d that this agent has seen.", blob.Number, k.Version)
	case k.Digest != "" && blob.Digest == k.Digest: // it, or what the operator has accepted
	case k.Format == 0: // of an agent of an earlier version, or none
	case blob.Number > k.Version && k.Digest != "" && !meta.follows(k.Digest):
		return wrong("State fork: version %d of the workspace's state in the database did not come after version %d, which this agent has seen.", blob.Number, k.Version)
	}
	if blob.Number == 0 || blob.Number == k.Version && blob.Digest == k.Digest {
		return blob, state, nil
	}
	chain := meta.Chain
	if k.Version == 0 { // what the operator has accepted comes after what was known before
		chain = chain.and(k.Chain)
	}
	k.Format, k.Version, k.Digest = meta.Format, blob.Number, blob.Digest
	k.Previous, k.Chain, k.Claim = meta.Previous, chain, uuid.Nil
	return blob, state, b.dir.remember(a.WorkspaceID, k)
}

// looksOnly reports whether a run changes neither the state nor what it records.
func looksOnly(a provision.Assignment) bool {
	if a.Operation != provision.OperationState {
		return false
	}
	snapshot, err := provision.ParseSnapshot(a.Snapshot)
	return err == nil && snapshot.State != nil && (snapshot.State.Command == "pull" || snapshot.State.Command == "list")
}

// openState opens a state that was made by an agent with this one's identity, for
// this workspace, as this version.
func (b *boot) openState(a provision.Assignment, blob queue.Blob, sealed []byte) (stateMeta, []byte, error) {
	var meta stateMeta
	identities := b.keys.held()
	err := json.Unmarshal(blob.Meta, &meta)
	if err != nil || hex.EncodeToString(sha256Of(sealed)) != blob.Digest || !identities.Verify(statePurpose, stateMessage(a.WorkspaceID, blob.Number, blob.Digest, meta), meta.MAC) {
		return meta, nil, provision.Fail(provision.CodeStateInvalid, fmt.Sprintf(
			"Version %d of the workspace's state in the database was not made by an agent with this one's identity (%s), or not for this workspace and as this version: somebody has changed the row, or the agents of the cluster have different identities. Nothing was run. If all agents have the same identity_file, restore the row from a backup, or go back with trellis state rollback.",
			blob.Number, seal.Fingerprint(identities.Public())), err)
	}
	// An agent without notes of its own believes the state's.
	k, err := b.dir.recall(a.WorkspaceID)
	if err != nil {
		return meta, nil, err
	}
	if meta.Format > 0 && meta.Name != a.Workspace && !k.Renamed {
		return meta, nil, provision.Fail(provision.CodeWorkspaceChanged, fmt.Sprintf(
			"The workspace's state, version %d, is that of workspace %s, and the database calls it %s. Nothing was run: credentials and sealed values follow the name. %s",
			blob.Number, meta.Name, a.Workspace, howToAccept(a)), nil)
	}
	state, err := identities.Open(sealed, managedstate.MaxState)
	if err != nil {
		return meta, nil, provision.Fail(provision.CodeStateInvalid, fmt.Sprintf("Version %d of the workspace's state cannot be opened: %v.", blob.Number, err), err)
	}
	return meta, state, nil
}

// maxSealed is the most that sealing makes of a state.
const maxSealed = managedstate.MaxState + managedstate.MaxState/1024

// readSealed reads what a run has left in a slot.
func (s *spool) readSealed(w provision.StateWrite) ([]byte, error) {
	if w.Slot < 0 || w.Slot >= len(stateSuffixes) {
		return nil, fmt.Errorf("there is no slot %d", w.Slot)
	}
	sealed, err := readUpTo(s.path(stateSuffixes[w.Slot]), maxSealed)
	if err != nil {
		return nil, err
	}
	if got := sha256Of(sealed); hex.EncodeToString(got) != w.Digest {
		return nil, errOverwritten
	}
	return sealed, nil
}

// errOverwritten is met where a slot holds another state than was told.
var errOverwritten = errors.New("the slot holds another state")
