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

// Sign returns a MAC (HMAC-SHA256) of a message under a key that is derived
// from the current identity for this purpose alone: only who has the identity
// can make one.
func (i Identities) Sign(purpose string, message []byte) []byte { return sum(i[0], purpose, message) }

// Verify reports whether the MAC was made by Sign with one of the identities.
func (i Identities) Verify(purpose string, message, mac []byte) bool {
	valid := false
	for _, one := range i {
		valid = hmac.Equal(sum(one, purpose, message), mac) || valid
	}
	return valid
}

func sum(identity *age.X25519Identity, purpose string, message []byte) []byte {
	key, err := hkdf.Key(sha256.New, []byte(identity.String()), nil, "tendril "+purpose, sha256.Size)
	if err != nil { // only of a length that is too large
		panic(err)
	}
	h := hmac.New(sha256.New, key)
	h.Write(message)
	return h.Sum(nil)
}
