package queuetest

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// An agent tells its public key, and hears which one is the cluster's.
func clusterKeyIsTold(t *testing.T, w *World, open Open) {
	for i, key := range []string{"q", "p"} {
		about := NewAgent(key)
		about.AgePublicKey = queue.NewPublicKey("age1" + strings.Repeat(key, 58))
		if got := mustRegister(t, open(t, w, w.Token, about)); got.ClusterKey != "age1"+strings.Repeat("q", 58) {
			t.Errorf("Register() of agent %d = cluster's key %q, want the first one's", i+1, got.ClusterKey)
		}
		if got, err := open(t, w, w.Token, about).Standing(t.Context()); err != nil || got.ClusterKey != "age1"+strings.Repeat("q", 58) {
			t.Errorf("Standing() of agent %d = cluster's key %q, %v, want the first one's", i+1, got.ClusterKey, err)
		}
	}
}

func registerTellsTheCluster(t *testing.T, w *World, open Open) {
	r := mustRegister(t, open(t, w, w.Token, NewAgent("one")))
	if r.ClusterID != w.Cluster || r.ClusterName != "prod" || r.Heartbeat != 10*time.Second || r.Lease != 2*time.Minute || r.Contract != queue.Contract {
		t.Errorf("Register() = %+v, want cluster prod, heartbeat 10 s, lease 2 min, contract %d", r, queue.Contract)
	}
}

func wrongTokenIsUnauthorized(t *testing.T, w *World, open Open) {
	_, err := open(t, w, "tnd_wrong", NewAgent("one")).Register(t.Context())
	e := wantKind(t, "Register(wrong token)", err, queue.Unauthorized)
	if strings.Contains(e.Error(), "tnd_wrong") || !strings.Contains(e.Error(), "TENDRIL_API_TOKEN") && !strings.Contains(e.Error(), "tendril join") {
		t.Errorf("error = %q, want the setting or the command named, and the token not", e)
	}
}

func revokedTokenEndsCalls(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	w.Exec(t, "SELECT public.revoke_cluster_token($1)", w.Cluster)
	_, err := q.Heartbeat(t.Context(), queue.Beat{})
	_ = wantKind(t, "Heartbeat(revoked)", err, queue.Unauthorized)
	_, err = q.Claim(t.Context(), uuid.New())
	_ = wantKind(t, "Claim(revoked)", err, queue.Unauthorized)
}

func nameInUseIsRefused(t *testing.T, w *World, open Open) {
	registered(t, w, open, "one")
	_, err := open(t, w, w.Token, NewAgent("one")).Register(t.Context())
	if e := wantKind(t, "Register(name in use)", err, queue.Refused); !strings.Contains(e.Message, "one.example") {
		t.Errorf("error = %q, want it to name the other's host", e)
	}
}

// An agent of the next contract does without what it brings.
func nextContractIsServed(t *testing.T, w *World, open Open) {
	agent := NewAgent("one")
	agent.Contract = queue.Contract + 1
	q := open(t, w, w.Token, agent)
	if r := mustRegister(t, q); r.Contract != queue.Contract {
		t.Errorf("Register() tells contract %d, want the database's own, %d", r.Contract, queue.Contract)
	}
	if got, want := w.Text(t, "SELECT contract::text FROM public.agents"), strconv.Itoa(queue.Contract); got != want {
		t.Errorf("the agent is registered with contract %s, want %s, by which it is given work", got, want)
	}
	w.Deploy(t, "a")
	mustReport(t, q, mustClaim(t, q).ClaimID, provision.Success, provision.Detail{})
}

func laterContractIsRefused(t *testing.T, w *World, open Open) {
	agent := NewAgent("one")
	agent.Contract = queue.Contract + 2
	_, err := open(t, w, w.Token, agent).Register(t.Context())
	e := wantKind(t, "Register(contract later than the next)", err, queue.Refused)
	for _, want := range []string{
		fmt.Sprintf("this agent speaks contract %d, the database only %d", agent.Contract, queue.Contract),
		fmt.Sprintf("speaks contract %d or %d", agent.Contract-1, agent.Contract), "trellis migrate",
	} {
		if !strings.Contains(e.Error(), want) {
			t.Errorf("error = %q, want it to say %q", e, want)
		}
	}
}

func supersededBootIsRefused(t *testing.T, w *World, open Open) {
	agent := NewAgent("one")
	old := open(t, w, w.Token, agent)
	mustRegister(t, old)
	agent.Boot = uuid.New()
	mustRegister(t, open(t, w, w.Token, agent))
	_, err := old.Heartbeat(t.Context(), queue.Beat{})
	_ = wantKind(t, "Heartbeat(old boot)", err, queue.Superseded)
	_, err = old.Claim(t.Context(), uuid.New())
	_ = wantKind(t, "Claim(old boot)", err, queue.Superseded)
}

func olderContractIsServed(t *testing.T, w *World, open Open) {
	agent := NewAgent("one")
	agent.Contract = queue.Contract - 1
	q := open(t, w, w.Token, agent)
	if r := mustRegister(t, q); r.Contract != queue.Contract {
		t.Errorf("Register() tells contract %d, want the database's own, %d", r.Contract, queue.Contract)
	}
	w.Deploy(t, "a")
	mustReport(t, q, mustClaim(t, q).ClaimID, provision.Success, provision.Detail{})
}

// The next program says its data directory with its host, and is the same agent.
func upgradeKeepsTheAgent(t *testing.T, w *World, open Open) {
	agent := NewAgent("one")
	agent.Contract = queue.Contract - 1
	q := open(t, w, w.Token, agent)
	mustRegister(t, q)
	id := w.Deploy(t, "a")
	mustClaim(t, q)
	agent.Contract, agent.Boot, agent.Host = queue.Contract, uuid.New(), agent.Host+":/var/lib/tendril"
	next := open(t, w, w.Token, agent)
	mustRegister(t, next)
	if orphans, err := next.FailOrphans(t.Context(), nil); err != nil || len(orphans) != 1 || orphans[0] != id {
		t.Errorf("FailOrphans() = %v, %v, want [%s]", orphans, err, id)
	}
}

// Rotates holds a queue to this: a token that is replaced while an agent is at
// work, by set, counts for all its calls from the next heartbeat on.
func Rotates(t *testing.T, w *World, q queue.Queue, set func(token string)) {
	t.Helper()
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	fresh := w.Text(t, "SELECT token FROM public.rotate_cluster_token($1, '0 seconds')", w.Cluster)
	_, err := q.Heartbeat(t.Context(), queue.Beat{})
	_ = wantKind(t, "Heartbeat(the token before)", err, queue.Unauthorized)
	set(fresh)
	if _, err := q.Heartbeat(t.Context(), queue.Beat{}); err != nil {
		t.Fatalf("Heartbeat(the new token) = %v, want nil", err)
	}
	w.Deploy(t, "a")
	claim := uuid.New()
	if a, err := q.Claim(t.Context(), claim); err != nil || a == nil {
		t.Errorf("Claim(the new token) = %v, %v, want the provision", a, err)
	}

	// What runs is this cluster's: another one knows nothing of it, and a mistyped
	// token must not end its lease.
	_, foreign := w.NewCluster(t, "other")
	for what, token := range map[string]string{"another cluster's": foreign, "a mistyped": fresh[:len(fresh)-1]} {
		for range 2 {
			set(token)
			if pulse, err := q.Heartbeat(t.Context(), queue.Beat{Claims: []uuid.UUID{claim}}); err != nil || len(pulse.Lost) != 0 {
				t.Errorf("Heartbeat(%s token) = %+v, %v, want it sent with the last token, and nothing lost", what, pulse, err)
			}
		}
	}
	set(foreign)
	if _, err := q.AppendLog(t.Context(), claim, 1, []provision.LogChunk{{Stream: provision.Stdout, Text: "line\n"}}); err != nil {
		t.Errorf("AppendLog(another cluster's token) = %v, want the line stored", err)
	}
	if got, err := q.Register(t.Context()); err != nil || got.ClusterID != w.Cluster {
		t.Errorf("Register(another cluster's token) = %+v, %v, want the cluster that it was", got, err)
	}
	last := w.Text(t, "SELECT token FROM public.rotate_cluster_token($1, '0 seconds')", w.Cluster)
	set(last)
	if _, err := q.Heartbeat(t.Context(), queue.Beat{}); err != nil {
		t.Errorf("Heartbeat(this cluster's token again) = %v, want nil", err)
	}
}

// identityIsShared is an agent that seals the cluster's identity to another one's key.
func identityIsShared(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(public)
	fingerprint := hex.EncodeToString(sum[:])
	const sealed = "-----BEGIN AGE ENCRYPTED FILE-----\nsealed\n"
	later := time.Now().Add(time.Hour)
	if key, err := q.AgentKey(t.Context(), fingerprint); key != nil || err != nil {
		t.Errorf("AgentKey() of nobody = %x, %v, want none", key, err)
	}
	if refused := wantKind(t, "ShareIdentity(with nobody)", q.ShareIdentity(t.Context(), public, sealed, later), queue.Refused); refused.Reason != "key_not_found" {
		t.Errorf("ShareIdentity(with nobody) = %s, want key_not_found", refused.Reason)
	}
	w.Exec(t, "INSERT INTO tendril.agent_keys (cluster_id, public_key, name) VALUES ($1, $2, 'two')", w.Cluster, []byte(public))
	for _, text := range []string{fingerprint, fingerprint[:22]} {
		if key, err := q.AgentKey(t.Context(), text); err != nil || !public.Equal(key) {
			t.Errorf("AgentKey(%s) = %x, %v, want the other agent's key", text, key, err)
		}
	}
	if err := q.ShareIdentity(t.Context(), public, sealed, later); err != nil {
		t.Errorf("ShareIdentity() = %v, want nil", err)
	}
	if got := w.Text(t, "SELECT s.sealed FROM tendril.identity_shares s JOIN tendril.agent_keys k ON k.id = s.key_id WHERE k.public_key = $1", []byte(public)); got != sealed {
		t.Errorf("the share is %q, want %q", got, sealed)
	}
	if text, err := q.SharedIdentity(t.Context()); text != "" || err != nil {
		t.Errorf("SharedIdentity() of the agent that shares = %q, %v, want nothing", text, err)
	}
}
