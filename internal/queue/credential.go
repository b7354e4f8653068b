package queue

import (
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
)

// Credential is what an agent shows of its cluster's token: the hash of it. The
// token may be changed while the agent runs, its cluster may not. It is safe for
// concurrent use.
type Credential struct {
	now func() string
	log *slog.Logger

	mu      sync.Mutex
	token   string
	hash    string
	cluster uuid.UUID // in which the agent has registered
	told    string    // a token that is not taken, of which the log has been told
	shown   []string  // tokens and hashes that there have been, the newest last
}

// NewCredential returns the credential of a token; now is asked for it by Renew,
// nil: it stays. The log is told of a token that is not taken; nil: nobody is.
func NewCredential(token string, now func() string, log *slog.Logger) *Credential {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := &Credential{now: now, log: log}
	c.take(token)
	return c
}

// NewKeyCredential returns the credential of an agent that signs its requests: the
// fingerprint of its key, which is nobody's secret, stands where a token's hash does.
func NewKeyCredential(fingerprint string) *Credential {
	return &Credential{hash: fingerprint, log: slog.New(slog.DiscardHandler)}
}

// Sign takes another key of the agent in place of the one that signs.
func (c *Credential) Sign(fingerprint string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hash = fingerprint
}

// Registered notes whose token it is.
func (c *Credential) Registered(cluster uuid.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cluster = cluster
}

// Renew takes the token as it is now, once the database knows it as one of the
// cluster that the agent has registered in. What runs is of that one: another would
// not know its claims, and with a token that is mistyped its leases would end while
// the last one may be good for hours. whose asks the database by a hash.
func (c *Credential) Renew(whose func(hash string) (Standing, error)) {
	if c.now == nil {
		return
	}
	token := c.now()
	c.mu.Lock()
	cluster, known := c.cluster, token == c.token
	if known {
		c.told = ""
	} else {
		c.show(token) // before anybody hears of it
	}
	c.mu.Unlock()
	if known {
		return
	}
	if cluster != uuid.Nil {
		switch standing, err := whose(hashOf(token)); {
		case err != nil && KindOf(err) == Unauthorized:
			c.tell(token, "the new token is not accepted; the last one is used until it is", "error", err)
			return
		case err != nil && KindOf(err) == Unavailable:
			return // heartbeats tell
		case err == nil && standing.ClusterID != cluster:
			c.tell(token, "the new token is another cluster's; the last one is used. To have this agent work for that cluster, start it again", "token_of", standing.ClusterName)
			return
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.take(token)
}

// tell tells the log once why a token is not taken.
func (c *Credential) tell(token, why string, about ...any) {
	c.mu.Lock()
	fresh := c.told != token
	c.told = token
	c.mu.Unlock()
	if fresh {
		c.log.Error(why, about...)
	}
}

func (c *Credential) take(token string) {
	c.token, c.hash, c.told = token, hashOf(token), ""
	c.show(token)
}

// show notes a token that others may speak of from now on.
func (c *Credential) show(token string) {
	if !slices.Contains(c.shown, token) {
		c.shown = append(c.shown, hashOf(token), token)
	}
}

func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
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
