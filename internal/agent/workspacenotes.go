package agent

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/statechain"
)

// known is what this agent knows of a workspace by itself, in states/ID. Whoever
// can only write rows can't change it: a workspace's name, and which state is its
// newest one, are compared with it.
type known struct {
	// Name is what the workspace was called when this agent ran it last; "" where an
	// earlier version of the agent made the file.
	Name string `json:"name,omitempty"`
	// Renamed says that the operator has accepted Name: states that are stored may
	// bear another one.
	Renamed bool `json:"renamed,omitempty"`
	// Version and Digest are those of the newest managed state that this agent has
	// read or stored; 0 and "" for none.
	Version int64  `json:"version,omitempty"`
	Digest  string `json:"digest,omitempty"`
	// Format, Previous, Chain and Claim, whose run wrote it, are that state's: see
	// statechain.Meta.
	Format   int                 `json:"format,omitempty"`
	Previous string              `json:"previous,omitempty"`
	Chain    statechain.Ancestry `json:"chain,omitempty"`
	Claim    uuid.UUID           `json:"claim,omitzero"`
}

// workspaceNotes are what an agent writes down about the workspaces that it runs, in
// states/ of its data directory. No row of the database changes them; the operator does, by
// Accept.
type workspaceNotes struct {
	dir *dataDir
	log *slog.Logger
}

// read reads what the agent knows of a workspace; nothing, where it has not run it.
func (n workspaceNotes) read(workspace uuid.UUID) (k known, err error) {
	text, err := readFile(n.knownPath(workspace))
	if errors.Is(err, fs.ErrNotExist) {
		return known{}, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &k)
	}
	if err != nil {
		return k, provision.Fail(provision.CodeWorkspaceChanged, fmt.Sprintf(
			"What this agent knows of the workspace, in %s on its machine, cannot be read: %v. Nothing was run. If the database is right, the agent's operator says so on the agent's machine: tendril workspaces accept %s --name NAME",
			n.knownPath(workspace), err, workspace), err)
	}
	return k, nil
}

func (n workspaceNotes) write(workspace uuid.UUID, k known) error {
	text, err := json.Marshal(k)
	if err == nil {
		err = durable.WriteFile(n.knownPath(workspace), append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("note what is known of the workspace: %w", err)
	}
	return nil
}

func (n workspaceNotes) knownPath(workspace uuid.UUID) string {
	return n.dir.path("states", workspace.String())
}

// owner is the id that a name belongs to, uuid.Nil if this agent has not run it.
func (n workspaceNotes) owner(name string) (uuid.UUID, error) {
	text, err := readFile(n.ownerPath(name))
	if errors.Is(err, fs.ErrNotExist) {
		return uuid.Nil, nil
	}
	if err != nil {
		return uuid.Nil, fmt.Errorf("read which workspace has the name: %w", err)
	}
	id, err := uuid.ParseBytes(text[:min(len(text), 36)])
	if err != nil {
		return uuid.Nil, fmt.Errorf("read which workspace has the name: %s holds no id", n.ownerPath(name))
	}
	return id, nil
}

func (n workspaceNotes) ownerPath(name string) string {
	sum := sha256.Sum256([]byte(name))
	return n.dir.path("states", "name-"+hex.EncodeToString(sum[:]))
}

// checkNotes are what an agent writes down about health checks by commands: when the newest
// check of each workspace was made. It is a file of its own, because checks go on while runs
// write what is known of a workspace.
type checkNotes struct {
	dir *dataDir
	mu  sync.Mutex
}

func (n *checkNotes) path(workspace uuid.UUID) string {
	return n.dir.path("states", workspace.String()+".checks")
}

// newest is the Made of the newest check that this agent knows of a workspace; 0: it knows none.
func (n *checkNotes) newest(workspace uuid.UUID) (int64, error) {
	text, err := readFile(n.path(workspace))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	var made int64
	if err == nil {
		made, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	}
	if err != nil {
		return 0, fmt.Errorf("read which checks of the workspace are the newest: %w", err)
	}
	return made, nil
}

// note remembers a genuine check, if none is newer. What a clock that is ahead has made counts as
// made now: else it would keep out what other agents make until then.
func (n *checkNotes) note(workspace uuid.UUID, made int64) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	made = min(made, time.Now().UnixMilli())
	if known, err := n.newest(workspace); err == nil && known >= made { // what can't be read is written again
		return nil
	}
	if err := durable.WriteFile(n.path(workspace), []byte(strconv.FormatInt(made, 10)+"\n")); err != nil {
		return fmt.Errorf("note which checks of the workspace are the newest: %w", err)
	}
	return nil
}

// Acceptance is what an agent's operator has said about a workspace whose name or
// state is not what the agent knows: that the database is right.
type Acceptance struct {
	// Name is the only name that is accepted.
	Name string `json:"name"`
	// State is the digest of the only state that is accepted, or that comes before the
	// one that is; NoState for none, "" for no other state than the known one.
	State string `json:"state,omitempty"`
}

// NoState is what an Acceptance says of a workspace that has no state any more.
const NoState = "none"

// Accept leaves an operator's answer in an agent's data directory. The next run of
// the workspace takes it, whether the agent runs meanwhile or not.
func Accept(dataDirectory string, workspace uuid.UUID, a Acceptance) error {
	n := workspaceNotes{dir: &dataDir{root: dataDirectory}}
	info, err := os.Stat(n.dir.path("states"))
	if err != nil {
		return fmt.Errorf("%s is no agent's data directory: %w", dataDirectory, err)
	}
	text, err := json.Marshal(a)
	if err == nil {
		err = durable.WriteFile(n.acceptedPath(workspace), append(text, '\n'))
	}
	if err == nil {
		err = chownLike(n.acceptedPath(workspace), info) // root may do it for another user's agent
	}
	if err != nil {
		return fmt.Errorf("leave the answer for the agent: %w", err)
	}
	return nil
}

// KnownWorkspace is what an agent knows of a workspace, see known.
type KnownWorkspace struct {
	ID   uuid.UUID `json:"id"`
	Name string    `json:"name,omitempty"`
	// StateVersion and StateDigest are those of the newest managed state.
	StateVersion int64  `json:"state_version,omitempty"`
	StateDigest  string `json:"state_digest,omitempty"`
	// Accepted waits for the next run.
	Accepted *Acceptance `json:"accepted,omitempty"`
	// Problem says why the agent's notes cannot be read.
	Problem string `json:"problem,omitempty"`
}

// KnownWorkspaces lists what the agent of a data directory knows, by name. The agent
// may be at work.
func KnownWorkspaces(dataDirectory string) ([]KnownWorkspace, error) {
	n := workspaceNotes{dir: &dataDir{root: dataDirectory}}
	entries, err := os.ReadDir(n.dir.path("states"))
	if err != nil {
		return nil, fmt.Errorf("%s is no agent's data directory: %w", dataDirectory, err)
	}
	ids := map[uuid.UUID]bool{}
	for _, entry := range entries {
		if id, err := uuid.Parse(strings.TrimSuffix(entry.Name(), acceptedSuffix)); err == nil {
			ids[id] = true
		}
	}
	all := make([]KnownWorkspace, 0, len(ids))
	for id := range ids {
		one := KnownWorkspace{ID: id, Accepted: n.accepted(id)}
		k, err := n.read(id)
		if err != nil {
			one.Problem = fmt.Sprintf("%s cannot be read: %v", n.knownPath(id), errors.Unwrap(err))
		}
		one.Name, one.StateVersion, one.StateDigest = k.Name, k.Version, k.Digest
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b KnownWorkspace) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ID.String(), b.ID.String()))
	})
	return all, nil
}

const acceptedSuffix = ".accepted"

func (n workspaceNotes) acceptedPath(workspace uuid.UUID) string {
	return n.dir.path("states", workspace.String()+acceptedSuffix)
}

// accepted is what the operator has said of a workspace, nil for nothing.
func (n workspaceNotes) accepted(workspace uuid.UUID) *Acceptance {
	var a Acceptance
	text, err := readFile(n.acceptedPath(workspace))
	if err != nil || json.Unmarshal(text, &a) != nil {
		return nil
	}
	return &a
}

// check fails unless an assignment names a workspace as its snapshot does, and
// as this agent has known it: credentials and sealed values follow the name, and
// what the state records follows the id.
func (n workspaceNotes) check(a provision.Assignment) error {
	if a.Operation == provision.OperationInspect {
		return nil // which has no workspace
	}
	if problem := canonical.WorkspaceProblem(a.Workspace); problem != "" {
		return provision.Fail(provision.CodeWorkspaceChanged, fmt.Sprintf(
			"The database calls the workspace %s %q, which %s. Nothing was run.", a.WorkspaceID, a.Workspace, problem), nil)
	}
	if snapshot, err := provision.ParseSnapshot(a.Snapshot); err == nil {
		if name, err := snapshot.WorkspaceName(); err == nil && name != a.Workspace {
			return provision.Fail(provision.CodeWorkspaceChanged, fmt.Sprintf(
				"The snapshot is for workspace %s, and the database gives it to workspace %s. Nothing was run: one of the two was changed after the deploy. Deploy again.", name, a.Workspace), nil)
		}
	}
	k, err := n.read(a.WorkspaceID)
	said := n.accepted(a.WorkspaceID)
	if said != nil && said.Name != a.Workspace {
		said = nil
	}
	if err != nil {
		if said == nil {
			return err
		}
		k = known{}
	}
	owner, err := n.owner(a.Workspace)
	switch {
	case err != nil && said == nil:
		return provision.Fail(provision.CodeWorkspaceChanged, fmt.Sprintf("%v. %s", err, howToAccept(a)), err)
	case said != nil:
	case k.Name != "" && k.Name != a.Workspace:
		return provision.Fail(provision.CodeWorkspaceChanged, fmt.Sprintf(
			"This agent knows the workspace %s as %s, and the database calls it %s. Nothing was run: credentials and sealed values follow the name. %s",
			a.WorkspaceID, k.Name, a.Workspace, howToAccept(a)), nil)
	case owner != uuid.Nil && owner != a.WorkspaceID:
		return provision.Fail(provision.CodeWorkspaceChanged, fmt.Sprintf(
			"This agent knows %s as the name of workspace %s, and the database gives it to workspace %s. Nothing was run: what the name stands for exists elsewhere. %s",
			a.Workspace, owner, a.WorkspaceID, howToAccept(a)), nil)
	case k.Name == a.Workspace && owner == a.WorkspaceID:
		return nil
	}
	if said == nil {
		return nil // see noteName
	}
	before := k.Name
	k.Name, k.Renamed = a.Workspace, true
	if said.State != "" {
		if k.Digest != "" { // for the other agents: what they have seen is part of this one's past
			k.Chain = k.Chain.With(k.Digest)
		}
		if k.Version, k.Format, k.Digest = 0, statechain.Format, said.State; said.State == NoState {
			k.Digest = ""
		}
	}
	if err := n.note(a, k); err != nil {
		return err
	}
	n.log.Warn("the operator has accepted what the database says of a workspace", "workspace", a.Workspace, "id", a.WorkspaceID, "known_as", before, "state", said.State)
	if err := os.Remove(n.acceptedPath(a.WorkspaceID)); err != nil {
		return fmt.Errorf("note what is known of the workspace: %w", err)
	}
	return nil
}

// noteName notes the name of a workspace that the agent did not know, once its state
// is found to bear that name, too: what is refused leaves no trace.
func (n workspaceNotes) noteName(a provision.Assignment) error {
	if a.Operation == provision.OperationInspect {
		return nil
	}
	k, err := n.read(a.WorkspaceID)
	if err != nil {
		return err
	}
	if owner, err := n.owner(a.Workspace); err == nil && owner == a.WorkspaceID && k.Name == a.Workspace {
		return nil
	}
	k.Name = a.Workspace
	return n.note(a, k)
}

func (n workspaceNotes) note(a provision.Assignment, k known) error {
	err := n.write(a.WorkspaceID, k)
	if err == nil {
		err = durable.WriteFile(n.ownerPath(a.Workspace), []byte(a.WorkspaceID.String()+"\n"))
	}
	if err != nil {
		return fmt.Errorf("note what is known of the workspace: %w", err)
	}
	return nil
}

// howToAccept is the last sentence of a refusal.
func howToAccept(a provision.Assignment) string {
	return "If that is right, the agent's operator says so on the agent's machine: " + acceptCommand(a)
}

// acceptCommand is what an operator may copy: check lets through no name that a
// shell would read as more than a word.
func acceptCommand(a provision.Assignment) string {
	return fmt.Sprintf("tendril workspaces accept %s --name %s", a.WorkspaceID, a.Workspace)
}

// chownLike gives a file the owner that a directory has.
func chownLike(path string, like os.FileInfo) error {
	stat, ok := like.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) == os.Geteuid() {
		return nil
	}
	return os.Lchown(path, int(stat.Uid), int(stat.Gid))
}
