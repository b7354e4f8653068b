package rpcqueue

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"slices"
	"sync/atomic"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcwire"
)

// signers are the keys with which the agent signs, the newest first. None: it shows a token.
type signers struct{ all atomic.Pointer[[]signer] }

type signer struct {
	key         ed25519.PrivateKey
	fingerprint []byte // as requests name it
}

// keptSigners is how many there are at most: a request may have been worded before a rotation.
const keptSigners = 2

func (s *signers) add(key ed25519.PrivateKey) {
	next := []signer{{key, []byte(agentkey.Fingerprint(key.Public().(ed25519.PublicKey)))}}
	if all := s.all.Load(); all != nil {
		next = append(next, *all...)
	}
	next = slices.Clip(next[:min(len(next), keptSigners)])
	s.all.Store(&next)
}

// namedWithin is where a request names its key, in bytes from its beginning.
const namedWithin = 512

// of is the key that a request names, else the newest; nil: there is none.
func (s *signers) of(body []byte) ed25519.PrivateKey {
	all := s.all.Load()
	if all == nil {
		return nil
	}
	head := body[:min(len(body), namedWithin)]
	for _, one := range *all {
		if bytes.Contains(head, one.fingerprint) {
			return one.key
		}
	}
	return (*all)[0].key
}

// RotateKey implements queue.KeyHolder.
func (q *Queue) RotateKey(ctx context.Context, next ed25519.PrivateKey) error {
	if q.signers.all.Load() == nil {
		return &queue.Error{Kind: queue.Refused, Message: "could not replace the agent's key: it has joined by none"}
	}
	public := next.Public().(ed25519.PublicKey)
	err := q.call(ctx, "replace the agent's key", "rotate_agent_key", rpcwire.RotateAgentKey{Caller: q.caller(), PublicKey: hex.EncodeToString(public)}, &expiry{})
	if queue.KindOf(err) == queue.Refused && q.counts(ctx, next) {
		err = nil // an answer was lost: this one says that the key is known
	}
	if err != nil {
		return err
	}
	q.signers.add(next)
	q.credential.Sign(agentkey.Fingerprint(public))
	return nil
}

// counts reports whether a key of this agent has joined.
func (q *Queue) counts(ctx context.Context, key ed25519.PrivateKey) bool {
	o := q.options
	o.Key = key
	other, err := New(o)
	if err != nil {
		return false
	}
	defer other.Close()
	standing, err := other.JoinStatus(ctx)
	return err == nil && standing.Status == rpcwire.JoinJoined
}
