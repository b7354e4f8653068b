package agent

import (
	"bytes"
	"context"
	"encoding/hex"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/identity"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/testkit/gatewaytest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// joined is an agent that has joined by key and made an identity of its own, in a cluster
// that has another one.
type joined struct {
	*keys
	world   *queuetest.World
	queue   queue.Queue
	dir     *dataDir
	key     agentkey.Key
	cluster seal.Identities
	log     *bytes.Buffer
	now     time.Time
	asked   int
	gateway gatewaytest.Gateway
}

func newJoined(t *testing.T) *joined {
	t.Helper()
	j := &joined{world: queuetest.NewWorld(t), cluster: seal.Identities{newIdentity(t), newIdentity(t)}, log: &bytes.Buffer{}, now: time.Now()}
	j.world.Exec(t, "UPDATE public.clusters SET age_public_key = $2 WHERE id = $1", j.world.Cluster, j.cluster.Public())
	var err error
	if j.dir, err = openDataDir(t.TempDir(), "b"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.dir.close)
	if j.key, err = agentkey.Create(j.dir.root); err != nil {
		t.Fatal(err)
	}
	j.world.Exec(t, "INSERT INTO tendril.agent_keys (cluster_id, public_key, name) VALUES ($1, $2, 'b')", j.world.Cluster, []byte(j.key.Public()))
	own, from, err := loadIdentities(j.dir, Identity{})
	if err != nil {
		t.Fatal(err)
	}
	about := queuetest.NewAgent("b")
	about.AgePublicKey = queue.NewPublicKey(own.Public())
	j.gateway = gatewaytest.ServeForKeys(t, j.world)
	if j.queue, err = rpcqueue.New(rpcqueue.Options{URL: j.gateway.URL, APIKey: j.gateway.APIKey, CAFile: j.gateway.CAFile, Key: j.key.Private(), Agent: about}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.queue.Close)
	log := slog.New(slog.NewTextHandler(j.log, nil))
	ask := func(ctx context.Context) (string, error) {
		j.asked++
		return j.queue.SharedIdentity(ctx)
	}
	j.keys = &keys{identity: from, public: about.AgePublicKey, own: own, log: log,
		shares: &identityShares{dir: j.dir, ask: ask, present: j.queue.ShareIdentity, cluster: func() string { return "prod" }, log: log}}
	registration, err := j.queue.Register(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	j.registered(registration.ClusterKey, j.now)
	return j
}

// beats are heartbeats of so long.
func (j *joined) beats(t *testing.T, long time.Duration) {
	t.Helper()
	for end := j.now.Add(long); j.now.Before(end); {
		j.now = j.now.Add(10 * time.Second)
		j.renew(t.Context(), j.now, j.queue.Register)
	}
}

// puts has the database hold this text for a key, no matter which identity sealed it.
func (j *joined) puts(t *testing.T, to agentkey.Key, sealed string) {
	t.Helper()
	j.world.Exec(t, `INSERT INTO tendril.identity_shares (key_id, shared_by, sealed, expires_at)
		SELECT id, gen_random_uuid(), $2, now() + interval '1 day' FROM tendril.agent_keys WHERE public_key = $1
		ON CONFLICT (key_id) DO UPDATE SET sealed = EXCLUDED.sealed`, []byte(to.Public()), sealed)
}

func (j *joined) sealed(t *testing.T, all seal.Identities, to agentkey.Key, cluster string, until time.Time) string {
	t.Helper()
	sealed, err := identity.Seal(all, to.Public(), cluster, until)
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

func (j *joined) accepts(t *testing.T, text string) {
	t.Helper()
	if err := identity.Accept(j.dir.root, text); err != nil {
		t.Fatal(err)
	}
}

// An agent that has joined gets the identity of its cluster from another agent, opens with it
// what is sealed for the cluster, and keeps what it had before. It is not started again.
func TestIdentityComesFromAnotherAgent(t *testing.T) {
	t.Parallel()
	j := newJoined(t)
	before := j.held().Public()
	vars := &sealedVars{keys: j.keys, cluster: "prod"}
	a := assignmentOf(t, map[string]string{"password": sealed(t, j.cluster[:1], "password", "acme/prod", "hidden-value")})
	if _, _, err := vars.open(a); err == nil {
		t.Fatal("the agent opens what is sealed for the cluster before it has the identity")
	}
	j.beats(t, 2*time.Minute)
	if j.asked > 3 {
		t.Errorf("it asked for a share %d times in two minutes, want once a minute", j.asked)
	}
	if err := j.queue.ShareIdentity(t.Context(), j.key.Public(), j.sealed(t, j.cluster, j.key, "prod", j.now.Add(time.Hour)), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	j.beats(t, 2*time.Minute)
	if j.held().Public() != before || !strings.Contains(j.log.String(), "tendril identity accept") {
		t.Errorf("before its operator has accepted it has %s and says\n%swant its own identity, and what to do", j.held().Public(), j.log)
	}
	j.accepts(t, identity.Fingerprint(j.cluster.Public()))
	j.beats(t, 2*time.Minute)
	if j.held().Public() != j.cluster.Public() || !j.held().Holds(j.cluster[1:].Public()) || !j.held().Holds(before) {
		t.Fatalf("it has %d identities, want those of the cluster before its own. Its log:\n%s", len(j.held()), j.log)
	}
	if opened, _, err := vars.open(a); err != nil || len(opened) != 1 {
		t.Errorf("open() = %v, %v, want what is sealed for the cluster", opened, err)
	}
	if info, err := os.Stat(j.dir.path("identity")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the identity's file = %v, %v, want 0600", info.Mode(), err)
	}
	if accepted, err := identity.ReadAccepted(j.dir.root); err != nil || !accepted.None() {
		t.Errorf("ReadAccepted() = %v, %v, want it used up", accepted, err)
	}
	if again, _, err := loadIdentities(j.dir, Identity{}); err != nil || again.Public() != j.cluster.Public() {
		t.Errorf("at its next start it has %v, %v, want the cluster's", again, err)
	}
	asked := j.asked
	j.beats(t, 3*time.Minute)
	if j.asked != asked || strings.Contains(j.log.String(), "AGE-SECRET-KEY") {
		t.Errorf("it asked %d times more, want none once it has the identity, and no identity in its log:\n%s", j.asked-asked, j.log)
	}
}

// A hostile database, which may put anything into any row, moves no identity.
func TestHostileDatabaseMovesNoIdentity(t *testing.T) {
	t.Parallel()
	j := newJoined(t)
	other, err := agentkey.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	mallory := seal.Identities{newIdentity(t)}
	good := j.sealed(t, j.cluster, j.key, "prod", j.now.Add(time.Hour))
	own := j.held().Public()
	file, err := os.ReadFile(j.dir.path("identity"))
	if err != nil {
		t.Fatal(err)
	}
	genuine := identity.Fingerprint(j.cluster.Public())
	for _, c := range []struct {
		name, accepted, clusterKey, sealed, says string
	}{
		{"nothing is accepted", "", j.cluster.Public(), good, "was shared with this agent"},
		{"mallory's own, and nothing is accepted", "", mallory.Public(), j.sealed(t, mallory, j.key, "prod", j.now.Add(time.Hour)), ""},
		{"mallory's own in place of the accepted", genuine, j.cluster.Public(), j.sealed(t, mallory, j.key, "prod", j.now.Add(time.Hour)), "not the one that was accepted"},
		{"mallory's own, which is the cluster's key as well", genuine, mallory.Public(), j.sealed(t, mallory, j.key, "prod", j.now.Add(time.Hour)), "not the one that was accepted"},
		{"the accepted one, and the cluster's key is mallory's", genuine, mallory.Public(), good, "not the cluster's"},
		{"for another key", genuine, j.cluster.Public(), j.sealed(t, j.cluster, other, "prod", j.now.Add(time.Hour)), "another key"},
		{"for another cluster", genuine, j.cluster.Public(), j.sealed(t, j.cluster, j.key, "dev", j.now.Add(time.Hour)), `the cluster \"dev\"`},
		{"an old one again", genuine, j.cluster.Public(), j.sealed(t, j.cluster, j.key, "prod", j.now), "expired"},
		{"truncated", genuine, j.cluster.Public(), good[:len(good)-120], "damaged"},
		{"no message", genuine, j.cluster.Public(), "-----BEGIN AGE ENCRYPTED FILE-----", "damaged"},
	} {
		if err := identity.Forget(j.dir.root); err != nil {
			t.Fatal(err)
		}
		if c.accepted != "" {
			j.accepts(t, c.accepted)
		}
		j.log.Reset()
		j.shares.told = "" // it says the same thing once
		j.world.Exec(t, "UPDATE public.clusters SET age_public_key = $2 WHERE id = $1", j.world.Cluster, c.clusterKey)
		j.puts(t, j.key, c.sealed)
		j.beats(t, 3*time.Minute)
		if now, err := os.ReadFile(j.dir.path("identity")); err != nil || !bytes.Equal(now, file) || j.held().Public() != own || len(j.held()) != 1 {
			t.Errorf("%s: the agent has %d identities, %s, want its own alone", c.name, len(j.held()), j.held().Public())
		}
		if said := j.log.String(); !strings.Contains(said, c.says) || strings.Contains(said, "AGE-SECRET-KEY") {
			t.Errorf("%s: the log is\n%swant one that says %q", c.name, said, c.says)
		}
	}
	// The key of B swapped in its row: the request is nobody's then.
	j.world.Exec(t, "UPDATE tendril.agent_keys SET public_key = decode($2, 'hex') WHERE public_key = $1", []byte(j.key.Public()), hex.EncodeToString(other.Public()))
	j.beats(t, 2*time.Minute)
	if j.held().Public() != own {
		t.Error("with its key's row forged the agent has another identity")
	}
}
