// Package statechain is what agents keep next to each version of a managed state, so
// that no agent takes another state for it.
//
// The database keeps the states, sealed, and is not trusted with them: it may have been
// restored from a backup, and whoever can write its rows may exchange them. So each
// version has a Meta under a MAC that only agents of the cluster can make:
//
//	version 1 ◀── previous ── version 2 ◀── previous ── version 3
//	Meta: workspace, name, version, serial, lineage, digest, previous, chain ── MAC
//
// A run may write many versions, and the database keeps its last. The Ancestry in a
// Meta therefore has the digests with which the latest runs began: an agent that was
// away finds the state that it knows among them, and knows that the newest one came
// after it.
//
// The package must not know where states are kept, when one is read or written, or
// what an operator has accepted: that is package agent's. A Meta's JSON and the text
// under its MAC are in databases already and must not change.
package statechain

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/seal"
)

// Format is that of a new Meta. Format 0 is of agents that knew neither names nor a
// chain, so whether something comes after it can't be told.
const Format = 2

// MaxState is the largest state that is kept, in bytes.
const MaxState = 256 << 20

// purpose is what the MAC is for, see seal.Identities.Sign.
const purpose = "state"

// Meta is what the database keeps with a version of a state.
type Meta struct {
	Format  int    `json:"v,omitempty"`
	Serial  uint64 `json:"serial"`
	Lineage string `json:"lineage,omitempty"`
	// Name is the workspace's.
	Name string `json:"name,omitempty"`
	// Previous is the digest of the state that this one came after; "": it is the
	// first.
	Previous string   `json:"previous,omitempty"`
	Chain    Ancestry `json:"chain,omitempty"`
	MAC      []byte   `json:"mac"`
}

// Follows reports whether a state came after the one of that digest.
func (m Meta) Follows(digest string) bool { return m.Previous == digest || m.Chain.Has(digest) }

// Sign sets the MAC.
func (m *Meta) Sign(by seal.Maker, workspace uuid.UUID, version int64, digest string) {
	m.MAC = by.Sign(purpose, m.message(workspace, version, digest))
}

// Signed reports whether an agent with one of these identities has signed the Meta for
// this version of the workspace's state.
func (m Meta) Signed(by seal.Identities, workspace uuid.UUID, version int64, digest string) bool {
	return by.Verify(purpose, workspace, m.message(workspace, version, digest), m.MAC)
}

// message is what a MAC is over: whose state it is, which version of it, and what is in
// it, as sealed. So nobody who can only write rows can make one, give one workspace
// another's, or have an old one pass for the newest.
func (m Meta) message(workspace uuid.UUID, version int64, digest string) []byte {
	if m.Format == 0 {
		return fmt.Appendf(nil, "state 1\nworkspace %s\nversion %d\nserial %d\nlineage %q\ndigest %s\n",
			workspace, version, m.Serial, m.Lineage, digest)
	}
	return fmt.Appendf(nil, "state %d\nworkspace %s %q\nversion %d\nserial %d\nlineage %q\ndigest %s\nprevious %q\nchain %x\n",
		m.Format, workspace, m.Name, version, m.Serial, m.Lineage, digest, m.Previous, []byte(m.Chain))
}

// Digest is how a sealed state is called.
func Digest(sealed []byte) string {
	sum := sha256.Sum256(sealed)
	return hex.EncodeToString(sum[:])
}

// Ancestry has, shortened to 64 bits each, the digests of the states with which the
// latest runs of a workspace began, the newest last. Nobody can choose a digest: it is
// of what an agent has sealed.
type Ancestry []byte

const (
	ancestorBytes = 8
	// MaxAncestors is how many runs an agent may miss and still recognise the state
	// that it knows. The database takes 4096 bytes of all that goes with a state.
	MaxAncestors = 256
)

// shortened is what an Ancestry has of a digest.
func shortened(digest string) []byte {
	sum := sha256.Sum256([]byte(digest))
	return sum[:ancestorBytes]
}

// Has reports whether a state is among the ancestors.
func (a Ancestry) Has(digest string) bool {
	want := shortened(digest)
	for rest := a; len(rest) >= ancestorBytes; rest = rest[ancestorBytes:] {
		if bytes.Equal(rest[:ancestorBytes], want) {
			return true
		}
	}
	return false
}

// With is the Ancestry with one more state.
func (a Ancestry) With(digest string) Ancestry { return a.And(shortened(digest)) }

// And is one Ancestry followed by another; the oldest are left out where both are too
// many.
func (a Ancestry) And(more Ancestry) Ancestry {
	all := slices.Concat(a, more)
	return all[max(0, len(all)-MaxAncestors*ancestorBytes):]
}
