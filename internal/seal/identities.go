package seal

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"filippo.io/age"
	"github.com/google/uuid"
)

// Identities are a cluster's private keys. The first is the current one; those
// behind it open what was made before a rotation.
type Identities []*age.X25519Identity

// Generate makes a new identity.
func Generate() (Identities, error) {
	made, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, fmt.Errorf("make an identity: %w", err)
	}
	return Identities{made}, nil
}

// ParseIdentities reads a file of age identities: one AGE-SECRET-KEY-1… a line, "#" begins a
// comment. Path is for its errors, which quote nothing of the
// text.
func ParseIdentities(path, text string) (all Identities, err error) {
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		identity, err := age.ParseX25519Identity(line)
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: no age identity (AGE-SECRET-KEY-1…)", path, n+1)
		}
		all = append(all, identity)
	}
	if all == nil {
		return nil, fmt.Errorf("%s holds no age identity (AGE-SECRET-KEY-1…)", path)
	}
	return all, nil
}

// Public is the current public key, age1…: to what is sealed for the cluster.
func (i Identities) Public() string { return i[0].Recipient().String() }

// Holds reports whether one of the identities belongs to the public key.
func (i Identities) Holds(public string) bool {
	return slices.ContainsFunc(i, func(one *age.X25519Identity) bool { return one.Recipient().String() == public })
}

// ErrNotForUs is in the chain of the error for a message that was sealed to
// another key.
var ErrNotForUs = errors.New("sealed to another key than this agent's")

// Open opens an age message, armoured or not, of at most limit bytes inside.
// That it opens says nothing of who made it: ask Verify.
func (i Identities) Open(message []byte, limit int64) ([]byte, error) {
	identities := make([]age.Identity, len(i))
	for n, one := range i {
		identities[n] = one
	}
	return Open(message, limit, identities...)
}

// Open opens an age message, armoured or not, of at most limit bytes inside, with any kind
// of identities.
func Open(message []byte, limit int64, identities ...age.Identity) ([]byte, error) {
	r, err := age.Decrypt(unarmoured(bytes.NewReader(message)), identities...)
	if _, stranger := errors.AsType[*age.NoIdentityMatchError](err); stranger {
		return nil, ErrNotForUs
	}
	if err != nil {
		// The library's words quote the text, which may be a value in plain.
		return nil, errors.New("not an age message, or a damaged one")
	}
	var plain bytes.Buffer
	plain.Grow(int(min(int64(len(message)), limit)) + bytes.MinRead) // at once: it may be a large state
	if _, err := plain.ReadFrom(io.LimitReader(r, limit+1)); err != nil {
		return nil, errors.New("damaged age message")
	}
	if int64(plain.Len()) > limit {
		return nil, fmt.Errorf("the age message holds more than %d bytes", limit)
	}
	return plain.Bytes(), nil
}

// FileKey returns what opens this age message and no other, for who is to open it without the
// identities: see OpenWith.
func (i Identities) FileKey(message []byte) ([]byte, error) {
	identities := make([]age.Identity, len(i))
	for n, one := range i {
		identities[n] = one
	}
	header, err := age.ExtractHeader(unarmoured(bytes.NewReader(message)))
	if err != nil {
		return nil, errors.New("not an age message, or a damaged one")
	}
	key, err := age.DecryptHeader(header, identities...)
	if err != nil {
		return nil, ErrNotForUs
	}
	return key, nil
}

// OpenWith opens the age message that the key is of.
func OpenWith(fileKey, message []byte, limit int64) ([]byte, error) {
	return Open(message, limit, age.NewInjectedFileKeyIdentity(fileKey))
}

// Sign returns a MAC (HMAC-SHA256) of a message under a key that is derived
// from the current identity for this purpose alone: only who has the identity
// can make one.
func (i Identities) Sign(purpose string, message []byte) []byte { return sum(i[0], purpose, message) }

// Verify reports whether the MAC was made by Sign with one of the identities, or by Sign of what
// one of them gave to a claim in this workspace.
func (i Identities) Verify(purpose string, workspace uuid.UUID, message, mac []byte) bool {
	valid := false
	for n, one := range i {
		made := sum(one, purpose, message)
		if len(mac) == len(uuid.UUID{})+sha256.Size {
			made = i[n:n+1].ForClaim(workspace, uuid.UUID(mac[:len(uuid.UUID{})])).Sign(purpose, message)
		}
		valid = hmac.Equal(made, mac) || valid
	}
	return valid
}

// Maker makes what holders of the cluster's identity open and believe.
type Maker interface {
	// Public is the recipient to whom it seals.
	Public() string
	// Sign returns a MAC that Verify takes.
	Sign(purpose string, message []byte) []byte
}

// ClaimKey lets the runner of one claim make what others believe of the claim's workspace, and
// open nothing.
type ClaimKey struct {
	Recipient string    `json:"recipient"`
	Claim     uuid.UUID `json:"claim"`
	// Key is secret.
	Key []byte `json:"key"`
}

// ForClaim derives the key of a claim from the current identity.
func (i Identities) ForClaim(workspace, claim uuid.UUID) ClaimKey {
	key := derived([]byte(i[0].String()), "claim "+claim.String()+" in "+workspace.String())
	return ClaimKey{Recipient: i.Public(), Claim: claim, Key: key}
}

// Public implements Maker.
func (k ClaimKey) Public() string { return k.Recipient }

// Sign implements Maker: the claim's id, and HMAC-SHA256 under a key for this purpose alone.
func (k ClaimKey) Sign(purpose string, message []byte) []byte {
	return append(k.Claim[:], keyed(derived(k.Key, purpose), message)...)
}

func sum(identity *age.X25519Identity, purpose string, message []byte) []byte {
	return keyed(derived([]byte(identity.String()), purpose), message)
}

func derived(secret []byte, purpose string) []byte {
	key, err := hkdf.Key(sha256.New, secret, nil, "tendril "+purpose, sha256.Size)
	if err != nil { // only of a length that is too large
		panic(err)
	}
	return key
}

func keyed(key, message []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(message)
	return h.Sum(nil)
}
