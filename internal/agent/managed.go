package agent

import (
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

// stateMeta is what the database keeps beside a state.
type stateMeta struct {
	Serial  uint64 `json:"serial"`
	Lineage string `json:"lineage,omitempty"`
	MAC     []byte `json:"mac"`
}

// stateMessage is what a MAC of a state is over: whose it is, which version of
// it, and what is in it, as sealed. So nobody who can only write rows can make
// one, give one workspace another's, or have an old one pass for the newest.
func stateMessage(workspace uuid.UUID, version int64, digest string, meta stateMeta) []byte {
	return fmt.Appendf(nil, "state 1\nworkspace %s\nversion %d\nserial %d\nlineage %q\ndigest %s\n",
		workspace, version, meta.Serial, meta.Lineage, digest)
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
func (b *boot) managedState(ctx context.Context, a provision.Assignment) (told *job.ManagedState, key string, in *os.File, err error) {
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
	blob, state, err := b.fetchState(ctx, a, 0)
	if err != nil {
		return nil, "", nil, err
	}
	if _, err := in.Write(state); err != nil {
		return nil, "", nil, fmt.Errorf("hand the state down: %w", err)
	}
	// After a state operation on what is older than was seen, the next version is
	// above both.
	return &job.ManagedState{Version: max(blob.Number, b.dir.seenState(a.WorkspaceID))}, key, in, nil
}

// fetchState reads a version of a workspace's state from the database, 0 for the
// newest, and opens it when it is one of this cluster's agents'. Where there is
// none both are empty. A database that is away is waited for until ctx ends.
func (b *boot) fetchState(ctx context.Context, a provision.Assignment, version int64) (blob queue.Blob, state []byte, err error) {
	var sealed []byte
	err = persist(ctx, func(ctx context.Context) (err error) {
		blob, sealed, err = b.queue.GetBlob(ctx, a.ClaimID, queue.BlobState, version)
		if errors.Is(err, queue.ErrNoBlob) {
			sealed, err = nil, nil
		}
		return patiently(err)
	})
	if err != nil && ctx.Err() != nil {
		return blob, nil, errStopped
	}
	if err != nil {
		return blob, nil, provision.Fail(provision.CodeStateInvalid, fmt.Sprintf("The workspace's state could not be read from the database: %v.", strings.TrimSuffix(err.Error(), ".")), err)
	}
	seen := b.dir.seenState(a.WorkspaceID)
	if version == 0 && blob.Number < seen && a.Operation != provision.OperationState {
		return blob, nil, provision.Fail(provision.CodeStateInvalid, fmt.Sprintf(
			"The newest state of the workspace in the database is version %d, and this agent has seen version %d: the database was restored from a backup, or rows were removed. With the older state, what was made since would be made a second time. Bring the right one in: trellis state push, or trellis state rollback to the version to go on with.",
			blob.Number, seen), nil)
	}
	if sealed == nil {
		return blob, nil, nil
	}
	if state, err = b.openState(a.WorkspaceID, blob, sealed); err != nil {
		return blob, nil, err
	}
	return blob, state, b.dir.sawState(a.WorkspaceID, blob.Number)
}

// openState opens a state that was made by an agent with this one's identity, for
// this workspace, as this version.
func (b *boot) openState(workspace uuid.UUID, blob queue.Blob, sealed []byte) ([]byte, error) {
	var meta stateMeta
	identities := b.keys.held()
	err := json.Unmarshal(blob.Meta, &meta)
	if err != nil || !identities.Verify(statePurpose, stateMessage(workspace, blob.Number, blob.Digest, meta), meta.MAC) {
		return nil, provision.Fail(provision.CodeStateInvalid, fmt.Sprintf(
			"Version %d of the workspace's state in the database was not made by an agent with this one's identity (%s), or not for this workspace and as this version: somebody has changed the row, or the agents of the cluster have different identities. Nothing was run. If all agents have the same identity_file, restore the row from a backup, or go back with trellis state rollback.",
			blob.Number, seal.Fingerprint(identities.Public())), err)
	}
	state, err := identities.Open(sealed, managedstate.MaxState)
	if err != nil {
		return nil, provision.Fail(provision.CodeStateInvalid, fmt.Sprintf("Version %d of the workspace's state cannot be opened: %v.", blob.Number, err), err)
	}
	return state, nil
}

// seenState is the newest version of the workspace's state that this agent knows
// of, 0 for none. Rows can be removed; this cannot by who can only do that.
func (d *dataDir) seenState(workspace uuid.UUID) int64 {
	var seen struct{ Version int64 }
	text, err := readFile(d.path("states", workspace.String()))
	if err != nil || json.Unmarshal(text, &seen) != nil {
		return 0
	}
	return seen.Version
}

func (d *dataDir) sawState(workspace uuid.UUID, version int64) error {
	if version <= d.seenState(workspace) {
		return nil
	}
	if err := writeFile(d.path("states", workspace.String()), fmt.Appendf(nil, "{\"version\": %d}\n", version)); err != nil {
		return fmt.Errorf("note the state's version: %w", err)
	}
	return nil
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
