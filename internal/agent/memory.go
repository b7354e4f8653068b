package agent

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/provision"
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
	// stateMeta. One of format 0 began no chain, so what comes after it can't be told.
	Format   int       `json:"format,omitempty"`
	Previous string    `json:"previous,omitempty"`
	Chain    ancestry  `json:"chain,omitempty"`
	Claim    uuid.UUID `json:"claim,omitzero"`
}

// recall reads what the agent knows of a workspace; nothing, where it has not run it.
func (d *dataDir) recall(workspace uuid.UUID) (k known, err error) {
	text, err := readFile(d.knownPath(workspace))
	if errors.Is(err, fs.ErrNotExist) {
		return known{}, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &k)
	}
	if err != nil {
		return k, provision.Fail(provision.CodeWorkspaceChanged, fmt.Sprintf(
			"What this agent knows of the workspace, in %s on its machine, cannot be read: %v. Nothing was run. If the database is right, the agent's operator says so on the agent's machine: tendril workspaces accept %s --name NAME",
			d.knownPath(workspace), err, workspace), err)
	}
	return k, nil
}

func (d *dataDir) remember(workspace uuid.UUID, k known) error {
	text, err := json.Marshal(k)
	if err == nil {
		err = writeFile(d.knownPath(workspace), append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("note what is known of the workspace: %w", err)
	}
	return nil
}

func (d *dataDir) knownPath(workspace uuid.UUID) string { return d.path("states", workspace.String()) }

// owner is the id that a name belongs to, uuid.Nil if this agent has not run it.
func (d *dataDir) owner(name string) (uuid.UUID, error) {
	text, err := readFile(d.ownerPath(name))
	if errors.Is(err, fs.ErrNotExist) {
		return uuid.Nil, nil
	}
	if err != nil {
		return uuid.Nil, fmt.Errorf("read which workspace has the name: %w", err)
	}
	id, err := uuid.ParseBytes(text[:min(len(text), 36)])
	if err != nil {
		return uuid.Nil, fmt.Errorf("read which workspace has the name: %s holds no id", d.ownerPath(name))
	}
	return id, nil
}

func (d *dataDir) ownerPath(name string) string {
	sum := sha256.Sum256([]byte(name))
	return d.path("states", "name-"+hex.EncodeToString(sum[:]))
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
	d := dataDir{root: dataDirectory}
	info, err := os.Stat(d.path("states"))
	if err != nil {
		return fmt.Errorf("%s is no agent's data directory: %w", dataDirectory, err)
	}
	text, err := json.Marshal(a)
	if err == nil {
		err = writeFile(d.acceptedPath(workspace), append(text, '\n'))
	}
	if err == nil {
		err = chownLike(d.acceptedPath(workspace), info) // root may do it for another user's agent
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
	d := dataDir{root: dataDirectory}
	entries, err := os.ReadDir(d.path("states"))
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
		one := KnownWorkspace{ID: id, Accepted: d.accepted(id)}
		k, err := d.recall(id)
		if err != nil {
			one.Problem = fmt.Sprintf("%s cannot be read: %v", d.knownPath(id), errors.Unwrap(err))
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

func (d *dataDir) acceptedPath(workspace uuid.UUID) string {
	return d.path("states", workspace.String()+acceptedSuffix)
}

// accepted is what the operator has said of a workspace, nil for nothing.
func (d *dataDir) accepted(workspace uuid.UUID) *Acceptance {
	var a Acceptance
	text, err := readFile(d.acceptedPath(workspace))
	if err != nil || json.Unmarshal(text, &a) != nil {
		return nil
	}
	return &a
}

// recognise fails unless an assignment names a workspace as its snapshot does, and
// as this agent has known it: credentials and sealed values follow the name, and
// what the state records follows the id.
func (b *boot) recognise(a provision.Assignment) error {
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
	k, err := b.dir.recall(a.WorkspaceID)
	said := b.dir.accepted(a.WorkspaceID)
	if said != nil && said.Name != a.Workspace {
		said = nil
	}
	if err != nil {
		if said == nil {
			return err
		}
		k = known{}
	}
	owner, err := b.dir.owner(a.Workspace)
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
		return nil // see acquaint
	}
	before := k.Name
	k.Name, k.Renamed = a.Workspace, true
	if said.State != "" {
		if k.Digest != "" { // for the other agents: what they have seen is part of this one's past
			k.Chain = k.Chain.with(k.Digest)
		}
		if k.Version, k.Format, k.Digest = 0, stateFormat, said.State; said.State == NoState {
			k.Digest = ""
		}
	}
	if err := b.noteWorkspace(a, k); err != nil {
		return err
	}
	b.log.Warn("the operator has accepted what the database says of a workspace", "workspace", a.Workspace, "id", a.WorkspaceID, "known_as", before, "state", said.State)
	if err := os.Remove(b.dir.acceptedPath(a.WorkspaceID)); err != nil {
		return fmt.Errorf("note what is known of the workspace: %w", err)
	}
	return nil
}

// acquaint notes the name of a workspace that the agent did not know, once its state
// is found to bear that name, too: what is refused leaves no trace.
func (b *boot) acquaint(a provision.Assignment) error {
	if a.Operation == provision.OperationInspect {
		return nil
	}
	k, err := b.dir.recall(a.WorkspaceID)
	if err != nil {
		return err
	}
	if owner, err := b.dir.owner(a.Workspace); err == nil && owner == a.WorkspaceID && k.Name == a.Workspace {
		return nil
	}
	k.Name = a.Workspace
	return b.noteWorkspace(a, k)
}

func (b *boot) noteWorkspace(a provision.Assignment, k known) error {
	err := b.dir.remember(a.WorkspaceID, k)
	if err == nil {
		err = writeFile(b.dir.ownerPath(a.Workspace), []byte(a.WorkspaceID.String()+"\n"))
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

// acceptCommand is what an operator may copy: recognise lets through no name that a
// shell would read as more than a word.
func acceptCommand(a provision.Assignment) string {
	return fmt.Sprintf("tendril workspaces accept %s --name %s", a.WorkspaceID, a.Workspace)
}

// ancestry has, shortened to 64 bits each, the digests of the states with which the
// latest runs of a workspace began, the newest last. Nobody can choose a digest: it
// is of what an agent has sealed.
type ancestry []byte

const (
	ancestorBytes = 8
	// maxAncestors is how many runs an agent may miss and still recognise the state
	// that it knows. The database takes 4096 bytes of all that goes with a state.
	maxAncestors = 256
)

// shortened is what an ancestry has of a digest.
func shortened(digest string) []byte {
	sum := sha256.Sum256([]byte(digest))
	return sum[:ancestorBytes]
}

func (a ancestry) has(digest string) bool {
	want := shortened(digest)
	for rest := a; len(rest) >= ancestorBytes; rest = rest[ancestorBytes:] {
		if bytes.Equal(rest[:ancestorBytes], want) {
			return true
		}
	}
	return false
}

// with is the ancestry with one more state.
func (a ancestry) with(digest string) ancestry { return a.and(shortened(digest)) }

// and is one ancestry followed by another; the oldest are left out where both are
// too many.
func (a ancestry) and(more ancestry) ancestry {
	all := slices.Concat(a, more)
	return all[max(0, len(all)-maxAncestors*ancestorBytes):]
}

// chownLike gives a file the owner that a directory has.
func chownLike(path string, like os.FileInfo) error {
	stat, ok := like.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) == os.Geteuid() {
		return nil
	}
	return os.Lchown(path, int(stat.Uid), int(stat.Gid))
}
