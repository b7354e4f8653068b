package planbundle

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
)

// MaxSealed is the most bytes that a sealed bundle may have; the database takes
// no more. MaxContent is what then fits into one: age adds a header and 16 bytes
// to each 64 KiB.
const (
	MaxSealed  = 8 << 20
	MaxContent = MaxSealed - 8<<10
)

// Bundle is a plan with what it depends on.
type Bundle struct {
	Provision uuid.UUID `json:"provision"`
	Workspace uuid.UUID `json:"workspace"`
	// Name is the workspace's: credentials and sealed values follow it.
	Name      string              `json:"workspace_name"`
	Operation provision.Operation `json:"operation"`
	// Commit is that of the template.
	Commit string `json:"commit"`
	// Snapshot is SnapshotDigest of the provision's snapshot.
	Snapshot string `json:"snapshot"`
	// Engine and EngineVersion made the plan; no other version reads it.
	Engine        string `json:"engine"`
	EngineVersion string `json:"engine_version"`
	// State says where the state is, in words.
	State string `json:"state"`

	// Lock is the template's lock file as init left it; empty for none.
	Lock []byte `json:"-"`
	// Plan is the engine's plan file.
	Plan []byte `json:"-"`
}

const magic = "tendril plan 2\n"

// maxHeader is the most bytes that the header may have.
const maxHeader = 16 << 10

type header struct {
	Bundle
	LockSize int `json:"lock"`
	PlanSize int `json:"plan"`
}

// Encode writes a bundle. It fails with CodePlanFailed if the bundle is larger
// than MaxContent.
func (b Bundle) Encode() ([]byte, error) {
	head, err := json.Marshal(header{b, len(b.Lock), len(b.Plan)})
	if err != nil {
		return nil, fmt.Errorf("encode the plan bundle: %w", err)
	}
	size := len(magic) + len(head) + 1 + len(b.Lock) + len(b.Plan)
	switch {
	case len(head) > maxHeader:
		return nil, fmt.Errorf("encode the plan bundle: its header has %d bytes, at most %d are allowed", len(head), maxHeader)
	case size > MaxContent:
		return nil, TooLarge(int64(size))
	}
	content := make([]byte, 0, size)
	content = append(content, magic...)
	content = append(append(content, head...), '\n')
	return append(append(content, b.Lock...), b.Plan...), nil
}

// TooLarge is the Failure of a run whose plan, with what belongs to it, has more
// than MaxContent bytes.
func TooLarge(size int64) *provision.Failure {
	return provision.Fail(provision.CodePlanFailed, fmt.Sprintf(
		"The plan is too large to be kept until it is approved: it has %.1f MiB, and at most %d MiB are kept. Plan less at once: name targets, or part the workspace into smaller ones.",
		float64(size)/(1<<20), MaxSealed>>20), nil)
}

// Decode reads what Encode has written, and nothing else. The parts of the
// bundle lie in content.
func Decode(content []byte) (Bundle, error) {
	if len(content) > MaxContent {
		return Bundle{}, fmt.Errorf("read the plan bundle: it has %d bytes, at most %d are allowed", len(content), MaxContent)
	}
	rest, is := bytes.CutPrefix(content, []byte(magic))
	if !is {
		return Bundle{}, errors.New("read the plan bundle: it begins otherwise than bundles that this program knows")
	}
	line, rest, ended := bytes.Cut(rest, []byte("\n"))
	if !ended || len(line) > maxHeader {
		return Bundle{}, errors.New("read the plan bundle: its header does not end")
	}
	var head header
	if err := json.Unmarshal(line, &head); err != nil {
		return Bundle{}, fmt.Errorf("read the plan bundle: its header: %w", err)
	}
	if again, err := json.Marshal(head); err != nil || !bytes.Equal(again, line) {
		return Bundle{}, errors.New("read the plan bundle: its header is written otherwise than bundles are")
	}
	if head.LockSize < 0 || head.LockSize > len(rest) || head.PlanSize != len(rest)-head.LockSize {
		return Bundle{}, fmt.Errorf("read the plan bundle: %d bytes follow the header, which speaks of %d and %d", len(rest), head.LockSize, head.PlanSize)
	}
	b := head.Bundle
	b.Lock, b.Plan = rest[:head.LockSize:head.LockSize], rest[head.LockSize:]
	return b, nil
}

// Digest is what a person approves: SHA-256 of a written bundle in hexadecimal.
func Digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// SnapshotDigest is SHA-256 of a snapshot in hexadecimal. It is the same however
// the JSON is spaced and its members are ordered, which transports differ in.
func SnapshotDigest(snapshot json.RawMessage) (string, error) {
	decoder := json.NewDecoder(bytes.NewReader(snapshot))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return "", fmt.Errorf("read the snapshot: %w", err)
	}
	canonical, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("read the snapshot: %w", err)
	}
	return Digest(canonical), nil
}

// purpose is what the MAC's key is derived for.
const purpose = "plan"

// meta is what goes with the sealed bytes.
type meta struct {
	MAC []byte `json:"mac"`
}

// Seal makes of a written bundle what goes through the database: an age message
// to the cluster's identity, and beside it the proof that a holder of that made it, or
// the runner of a claim.
func Seal(by seal.Maker, content []byte) (sealed []byte, proof json.RawMessage, err error) {
	recipient, err := seal.ParseRecipient(by.Public())
	if err != nil {
		return nil, nil, err
	}
	if sealed, err = seal.To(recipient, content); err != nil {
		return nil, nil, err
	}
	if len(sealed) > MaxSealed {
		return nil, nil, fmt.Errorf("seal the plan: %d bytes, at most %d are allowed", len(sealed), MaxSealed)
	}
	proof, err = json.Marshal(meta{by.Sign(purpose, content)})
	return sealed, proof, err
}

// Open returns the written bundle of that digest. It fails with CodePlanInvalid
// unless it is that, and made by a holder of the identities.
func Open(identities seal.Identities, workspace uuid.UUID, sealed []byte, proof json.RawMessage, digest string) ([]byte, error) {
	if len(sealed) > MaxSealed {
		return nil, Invalid(fmt.Sprintf("what is stored has %d bytes, at most %d are allowed", len(sealed), MaxSealed), nil)
	}
	content, err := identities.Open(sealed, MaxContent)
	if errors.Is(err, seal.ErrNotForUs) {
		return nil, Invalid("it is sealed to another key than this agent's; give all agents of the cluster one identity: tendril identity share, or identity_file", err)
	}
	if err != nil {
		return nil, Invalid("it cannot be opened: "+err.Error(), err)
	}
	var m meta
	if err := json.Unmarshal(proof, &m); err != nil || !identities.Verify(purpose, workspace, content, m.MAC) {
		return nil, Invalid("no agent of this cluster has made what is stored in its place", err)
	}
	if Digest(content) != digest {
		return nil, Invalid("what is stored is another plan than the one that was approved", nil)
	}
	return content, nil
}

// Serves fails, with CodePlanInvalid, unless the bundle was made for this very
// assignment.
func (b Bundle) Serves(a provision.Assignment) error {
	snapshot, err := SnapshotDigest(a.Snapshot)
	if err != nil {
		return err
	}
	switch {
	case b.Provision != a.ProvisionID:
		return Invalid("it was made for another provision", nil)
	case b.Workspace != a.WorkspaceID:
		return Invalid("it was made for another workspace", nil)
	case b.Name != a.Workspace:
		return Invalid(fmt.Sprintf("it was made for the workspace when that was called %q, and the database calls it %q", b.Name, a.Workspace), nil)
	case b.Operation != a.Operation:
		return Invalid(fmt.Sprintf("it was made for the operation %q, not %q", b.Operation, a.Operation), nil)
	case b.Snapshot != snapshot:
		return Invalid("the snapshot is not the one that it was made for: it was changed since", nil)
	}
	return nil
}

// Invalid is the Failure of a run whose approved plan cannot be applied.
func Invalid(why string, cause error) *provision.Failure {
	return provision.Fail(provision.CodePlanInvalid, fmt.Sprintf(
		"The approved plan is not applied: %s. Nothing was changed. Deploy again to have a new plan made, and approve that.", why), cause)
}
