package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/seal"
)

// clusterKeyEvery is how often the database is asked for the cluster's key while
// that is not this agent's current one, which is so while identities are rotated.
const clusterKeyEvery = time.Minute

// keys are the identities of this agent and the key to which people seal for its
// cluster. Both may change while it runs:
//
//	the identities' file  ── looked at with each heartbeat ──▶ own, and the public half is registered
//	set_cluster_key       ── asked for while cluster is not own's first ──▶ cluster
//
// What an identity opened before it opens for as long as it stands in the file.
type keys struct {
	identity Identity         // Text is what own was read from
	public   *queue.PublicKey // told when the agent registers
	log      *slog.Logger

	mu      sync.Mutex
	own     seal.Identities
	cluster string // "" for none

	// These belong to the heartbeat.
	told     bool // that the file cannot be used
	ask      bool // the database knows another public half than own's
	askAgain time.Time
	refused  bool // that it refuses to register this agent anew is told
}

// held are the identities, the current one first.
func (k *keys) held() seal.Identities {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.own
}

// clusterKey is to what people seal, "" where nobody has said.
func (k *keys) clusterKey() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.cluster
}

// registered notes the cluster's key, and tells people when it is not ours.
func (k *keys) registered(cluster string, now time.Time) {
	k.mu.Lock()
	fresh := k.cluster != cluster
	k.cluster = cluster
	k.mu.Unlock()
	k.ask, k.askAgain = false, now.Add(clusterKeyEvery)
	if fresh {
		compareKeys(k.held(), cluster, k.log)
	}
}

// renew takes the identities anew whose file has changed, and registers where
// the database is to hear of that or may know of another key for the cluster.
func (k *keys) renew(ctx context.Context, now time.Time, register func(context.Context) (queue.Registration, error)) {
	if k.identity.Read == nil {
		return
	}
	k.reread()
	if !k.ask && (k.clusterKey() == k.held().Public() || now.Before(k.askAgain)) {
		return
	}
	registration, err := register(ctx)
	if err != nil {
		// Of a database that is away heartbeats tell; this they may not meet.
		if queue.Final(err) && !k.refused {
			k.refused = true
			k.log.Warn("the database refuses to register this agent anew, so it does not learn the cluster's key; trying again with each heartbeat", "error", err)
		}
		return
	}
	k.refused = false
	was := k.clusterKey()
	k.registered(registration.ClusterKey, now)
	if registration.ClusterKey != was && registration.ClusterKey == k.held().Public() {
		k.log.Info("the cluster's key is this agent's now", "key", seal.Fingerprint(registration.ClusterKey))
	}
}

// reread reads the file. One that cannot be used changes nothing: it may be
// half written.
func (k *keys) reread() {
	text, err := k.identity.Read()
	if err == nil && text == k.identity.Text {
		k.told = false
		return
	}
	var own seal.Identities
	if err == nil {
		own, err = seal.ParseIdentities(k.identity.File, text)
	}
	if err != nil {
		if !k.told {
			k.log.Warn("the identities cannot be read again; the last ones are used", "identity_file", k.identity.File, "error", err)
		}
		k.told = true
		return
	}
	k.identity.Text, k.told, k.ask = text, false, true
	k.mu.Lock()
	k.own = own
	k.mu.Unlock()
	k.public.Set(own.Public())
	k.log.Info("the identities have changed in their file; the new ones are used from now on", "key", seal.Fingerprint(own.Public()), "identities", len(own))
}
