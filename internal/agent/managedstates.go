package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/statechain"
)

// managedStates reads the states that the database keeps for workspaces. It hands down
// none that this agent's cluster did not make, and none older than one that the agent has
// seen: with either, what was made since would be made a second time.
type managedStates struct {
	queue blobReader
	keys  *keys
	notes workspaceNotes
	// allowed says that the agent's configuration lets runs have one.
	allowed bool
}

// blobReader is the part of the queue from which runs are given what they need.
type blobReader interface {
	GetBlob(ctx context.Context, claim uuid.UUID, kind string, number int64) (queue.Blob, []byte, error)
}

// handDown gets the workspace's state for a run that may have a managed one:
// what the run is told, the key it seals to, and a file in memory with the state,
// opened. Nil and an empty file for a run that may not.
func (m *managedStates) handDown(ctx context.Context, a provision.Assignment, t trusted) (told *job.ManagedState, key string, in *os.File, err error) {
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
	if !m.allowed {
		return nil, "", in, nil
	}
	if key, err = m.keys.stateKey(); err != nil {
		return nil, "", nil, err
	}
	blob, state, err := m.newest(ctx, a, t)
	if err != nil {
		return nil, "", nil, err
	}
	k, err := m.notes.read(a.WorkspaceID)
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

// fetch reads a version of a workspace's state from the database, 0 for the
// newest, and opens it when it is one of this cluster's agents'. Where there is
// none both are empty. A database that is away is waited for until ctx ends.
func (m *managedStates) fetch(ctx context.Context, a provision.Assignment, version int64) (blob queue.Blob, meta statechain.Meta, state []byte, err error) {
	var sealed []byte
	err = persist(ctx, func(ctx context.Context) (err error) {
		blob, sealed, err = m.queue.GetBlob(ctx, a.ClaimID, queue.BlobState, version)
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
		return blob, statechain.Meta{}, nil, nil
	}
	meta, state, err = m.open(a, blob, sealed)
	return blob, meta, state, err
}

// newest fetches the newest state, which must be the one that this agent knows
// or come after it. A signed order to replace it vouches for another one.
func (m *managedStates) newest(ctx context.Context, a provision.Assignment, t trusted) (queue.Blob, []byte, error) {
	blob, meta, state, err := m.fetch(ctx, a, 0)
	if err != nil {
		return blob, nil, err
	}
	k, err := m.notes.read(a.WorkspaceID)
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
			k.Chain = meta.Chain.And(k.Chain.With(k.Digest)) // what other agents have seen is part of what follows
			k.Format, k.Digest, k.Version, k.Claim = meta.Format, blob.Digest, max(k.Version, blob.Number), uuid.Nil
			return blob, state, m.notes.write(a.WorkspaceID, k)
		}
	case blob.Number < k.Version && looksOnly(a):
		return blob, state, nil // an older state that nobody goes on from
	case blob.Number < k.Version:
		return wrong("State step back: the newest state of the workspace in the database is version %d, and this agent has seen version %d. The database was restored from a backup, or rows were changed or removed.", blob.Number, k.Version)
	case blob.Number == k.Version && k.Digest != "" && blob.Digest != k.Digest:
		return wrong("State fork: version %d of the workspace's state in the database is another one than the version %d that this agent has seen.", blob.Number, k.Version)
	case k.Digest != "" && blob.Digest == k.Digest: // it, or what the operator has accepted
	case k.Format == 0: // of an agent of an earlier version, or none
	case blob.Number > k.Version && k.Digest != "" && !meta.Follows(k.Digest):
		return wrong("State fork: version %d of the workspace's state in the database did not come after version %d, which this agent has seen.", blob.Number, k.Version)
	}
	if blob.Number == 0 || blob.Number == k.Version && blob.Digest == k.Digest {
		return blob, state, nil
	}
	chain := meta.Chain
	if k.Version == 0 { // what the operator has accepted comes after what was known before
		chain = chain.And(k.Chain)
	}
	k.Format, k.Version, k.Digest = meta.Format, blob.Number, blob.Digest
	k.Previous, k.Chain, k.Claim = meta.Previous, chain, uuid.Nil
	return blob, state, m.notes.write(a.WorkspaceID, k)
}

// looksOnly reports whether a run changes neither the state nor what it records.
func looksOnly(a provision.Assignment) bool {
	if a.Operation != provision.OperationState {
		return false
	}
	snapshot, err := provision.ParseSnapshot(a.Snapshot)
	return err == nil && snapshot.State != nil && slices.Contains([]string{"pull", "list", "reveal"}, snapshot.State.Command)
}

// open opens a state that was made by an agent with this one's identity, for
// this workspace, as this version.
func (m *managedStates) open(a provision.Assignment, blob queue.Blob, sealed []byte) (statechain.Meta, []byte, error) {
	var meta statechain.Meta
	identities := m.keys.held()
	err := json.Unmarshal(blob.Meta, &meta)
	if err != nil || statechain.Digest(sealed) != blob.Digest || !meta.Signed(identities, a.WorkspaceID, blob.Number, blob.Digest) {
		return meta, nil, provision.Fail(provision.CodeStateInvalid, fmt.Sprintf(
			"Version %d of the workspace's state in the database was not made by an agent with this one's identity (%s), or not for this workspace and as this version: somebody has changed the row, or the agents of the cluster have different identities. Nothing was run. If all agents have the same identity, restore the row from a backup, or go back with trellis state rollback.",
			blob.Number, seal.Fingerprint(identities.Public())), err)
	}
	// An agent without notes of its own believes the state's.
	k, err := m.notes.read(a.WorkspaceID)
	if err != nil {
		return meta, nil, err
	}
	if meta.Format > 0 && meta.Name != a.Workspace && !k.Renamed {
		return meta, nil, provision.Fail(provision.CodeWorkspaceChanged, fmt.Sprintf(
			"The workspace's state, version %d, is that of workspace %s, and the database calls it %s. Nothing was run: credentials and sealed values follow the name. %s",
			blob.Number, meta.Name, a.Workspace, howToAccept(a)), nil)
	}
	state, err := identities.Open(sealed, statechain.MaxState)
	if err != nil {
		return meta, nil, provision.Fail(provision.CodeStateInvalid, fmt.Sprintf("Version %d of the workspace's state cannot be opened: %v.", blob.Number, err), err)
	}
	return meta, state, nil
}

// maxSealed is the most that sealing makes of a state.
const maxSealed = statechain.MaxState + statechain.MaxState/1024

// errOverwritten is met where a slot holds another state than was told.
var errOverwritten = errors.New("the slot holds another state")
