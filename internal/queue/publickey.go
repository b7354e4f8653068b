package queue

import "sync/atomic"

// PublicKey is the public half, age1…, of an agent's current identity, which may
// be replaced while it runs. It is safe for concurrent use.
type PublicKey struct{ text atomic.Pointer[string] }

// NewPublicKey returns one that is this text.
func NewPublicKey(text string) *PublicKey {
	k := new(PublicKey)
	k.Set(text)
	return k
}

// Set replaces it: the next registration tells the new one.
func (k *PublicKey) Set(text string) { k.text.Store(&text) }

// MarshalText implements encoding.TextMarshaler.
func (k *PublicKey) MarshalText() ([]byte, error) { return []byte(*k.text.Load()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *PublicKey) UnmarshalText(text []byte) error {
	k.Set(string(text))
	return nil
}
