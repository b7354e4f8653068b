package queue

import (
	"crypto/sha256"
	"encoding/hex"
	"sync"
)

// Credential is what an agent shows of its cluster's token: the hash of it. The
// token may be changed while the agent runs. It is safe for concurrent use.
type Credential struct {
	now func() string

	mu    sync.Mutex
	token string
	hash  string
	shown []string // tokens and hashes that there have been, the newest last
}

// NewCredential returns the credential of a token; now is asked for it by Renew,
// nil: it stays.
func NewCredential(token string, now func() string) *Credential {
	c := &Credential{now: now}
	c.take(token)
	return c
}

// Renew takes the token as it is now.
func (c *Credential) Renew() {
	if c.now == nil {
		return
	}
	token := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if token != c.token {
		c.take(token)
	}
}

func (c *Credential) take(token string) {
	sum := sha256.Sum256([]byte(token))
	c.token, c.hash = token, hex.EncodeToString(sum[:])
	c.shown = append(c.shown, c.hash, c.token)
}

// Hash is sha256(token) in hexadecimal, which is all that leaves this process.
func (c *Credential) Hash() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hash
}

// Shown are the tokens that there have been and their hashes, for who takes them
// out of texts: an answer may speak of the one before.
func (c *Credential) Shown() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.shown...)
}
