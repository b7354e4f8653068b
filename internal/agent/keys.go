package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tendril-run/tendril/internal/identity"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/secretfile"
)

// clusterKeyEvery is how often the database is asked for the cluster's key while
// that is not this agent's current one, which is so while identities are rotated.
const clusterKeyEvery = time.Minute

// keys are the identities of this agent and the key to which people seal for its
// cluster. Both may change while it runs:
//
//	another agent's share ── asked for while own lacks cluster ──▶ the identities' file
//	another agent's certificate ── asked for while own has cluster ──▶ a share for that agent
//	the identities' file  ── read with each heartbeat ──▶ own, and the public half is registered
//	set_cluster_key       ── asked for while cluster is not own's first ──▶ cluster
//
// What an identity opened before it opens for as long as it stands in the file.
type keys struct {
	identity Identity         // Text is what own was read from
	public   *queue.PublicKey // told when the agent registers
	shares   *identityShares  // nil: the identity is the operator's file
	waiting  *certificates    // nil: this agent shares with nobody
	log      *slog.Logger
	claim    *seal.ClaimKey // a runner's, which has no identities; else nil

	contract atomic.Int64 // the database's

	mu      sync.Mutex
	own     seal.Identities
	cluster string // "" for none

	// These belong to the heartbeat.
	told     bool // that the file cannot be used
	ask      bool // the database knows another public half than own's
	askAgain time.Time
	refused  bool // that it refuses to register this agent again is told
}

// fair reports whether the database knows checks by a command, and how checks are shared out.
func (k *keys) fair() bool { return k.contract.Load() >= queue.ContractOfCommands }

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
	if k.claim != nil {
		return // a runner has none to compare
	}
	k.mu.Lock()
	fresh := k.cluster != cluster
	k.cluster = cluster
	k.mu.Unlock()
	k.ask, k.askAgain = false, now.Add(clusterKeyEvery)
	if fresh {
		compareKeys(k.held(), cluster, k.log)
	}
}

// renew reads the identities again whose file has changed, and registers where
// the database is to hear of that or may know of another key for the cluster.
func (k *keys) renew(ctx context.Context, now time.Time, register func(context.Context) (queue.Registration, error)) {
	cluster := k.clusterKey()
	holds := cluster != "" && k.held().Holds(cluster)
	if k.waiting != nil && holds {
		k.waiting.share(ctx, k.held(), now)
	}
	if k.identity.Read == nil {
		return
	}
	if k.shares != nil && cluster != "" && !holds {
		k.shares.take(ctx, cluster, now)
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
			k.log.Warn("the database refuses to register this agent again, so it does not learn the cluster's key; trying again with each heartbeat", "error", err)
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

// makers are the identities to which, and by which, what others are to read is
// made: while identities are rotated, the one that all agents have.
func (k *keys) makers() seal.Maker {
	if k.claim != nil {
		return k.claim
	}
	return k.identities()
}

func (k *keys) identities() seal.Identities {
	identities, cluster := k.held(), k.clusterKey()
	for n := range identities {
		if one := identities[n : n+1]; one.Public() == cluster {
			return slices.Clip(one)
		}
	}
	return identities
}

// stateKey is to what this agent's runs seal: the cluster's key, if it can open
// that itself.
func (k *keys) stateKey() (string, error) {
	switch key, own := k.clusterKey(), k.held(); {
	case key == "":
		return own.Public(), nil
	case own.Holds(key):
		return key, nil
	default:
		return "", provision.Fail(provision.CodeStateInvalid, fmt.Sprintf(
			"The workspace's state is to be sealed to the cluster's key (%s), and this agent has another one (%s): no two agents could read each other's states. Have an agent that has the cluster's identity share it: tendril identity share. Or give all agents the same identity_file, and have an admin call set_cluster_key with its public half.",
			seal.Fingerprint(key), seal.Fingerprint(own.Public())), nil)
	}
}

// loadIdentities takes those that were configured, or, where none are, those in the data
// directory, where one is made at the first start. Which they are it returns as well.
func loadIdentities(d *dataDir, configured Identity) (seal.Identities, Identity, error) {
	if configured.File != "" {
		own, err := seal.ParseIdentities(configured.File, configured.Text)
		if err != nil {
			err = fmt.Errorf(`%w: make one with "tendril identity new"`, err)
		}
		return own, configured, err
	}
	path := d.path(identity.File)
	read := func() (string, error) { return secretfile.Read(path) }
	text, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err = identity.Create(path); err == nil || errors.Is(err, fs.ErrExist) { // "tendril identity new" made it meanwhile
			text, err = readFile(path)
		}
	}
	if err != nil {
		return nil, Identity{}, fmt.Errorf("read the agent's identity: %w", err)
	}
	own, err := seal.ParseIdentities(path, string(text))
	return own, Identity{File: path, Text: string(text), Read: read}, err
}

// compareKeys tells people when the cluster's key is not the agent's current one.
func compareKeys(own seal.Identities, cluster string, log *slog.Logger) {
	switch {
	case cluster == "" || cluster == own.Public():
	case own.Holds(cluster):
		log.Info("the cluster's key is one of this agent's older ones; when all agents have the new one, set it with set_cluster_key",
			"cluster_key", cluster, "agent_key", own.Public())
	default:
		log.Warn("the cluster's key is not this agent's: what is sealed for the cluster cannot be opened here. "+
			"Have an agent that can share its identity with this one (\"tendril identity show\" here says how), or give all agents one identity_file. If the cluster's key is the wrong one, have an admin call set_cluster_key",
			"cluster_key", cluster, "agent_key", own.Public())
	}
}
