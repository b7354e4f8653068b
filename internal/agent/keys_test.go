package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// rotating is an agent's keys on a real queue, and what is in their file.
type rotating struct {
	*keys
	world *queuetest.World
	queue queue.Queue
	log   *bytes.Buffer
	file  string
	err   error
	asked int
	now   time.Time
}

func newRotating(t *testing.T, own seal.Identities) *rotating {
	t.Helper()
	r := &rotating{world: queuetest.NewWorld(t), log: &bytes.Buffer{}, file: own[0].String(), now: time.Now()}
	about := queuetest.NewAgent("one")
	about.AgePublicKey = queue.NewPublicKey(own.Public())
	var err error
	if r.queue, err = pgqueue.New(t.Context(), pgqueue.Options{URL: r.world.AgentURL(t), ListenURL: "off", Token: r.world.Token, Agent: about}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.queue.Close)
	r.keys = &keys{
		identity: Identity{File: "/identity", Text: r.file, Read: func() (string, error) { return r.file, r.err }},
		public:   about.AgePublicKey, own: own, log: slog.New(slog.NewTextHandler(r.log, nil)),
	}
	registration, err := r.queue.Register(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.registered(registration.ClusterKey, r.now)
	return r
}

// beat is a heartbeat, so much later.
func (r *rotating) beat(t *testing.T, later time.Duration) {
	t.Helper()
	r.now = r.now.Add(later)
	r.renew(t.Context(), r.now, func(ctx context.Context) (queue.Registration, error) {
		r.asked++
		return r.queue.Register(ctx)
	})
}

// Identities are rotated while the agent runs: it opens what is sealed to either
// as soon as its file has both, goes on sealing to the cluster's key, and learns
// of the new one within a minute.
func TestIdentitiesAreRotatedMeanwhile(t *testing.T) {
	t.Parallel()
	old, fresh := seal.Identities{newIdentity(t)}, seal.Identities{newIdentity(t)}
	r := newRotating(t, old)
	b := &sealedVars{keys: r.keys, cluster: "prod"}
	for range 10 {
		r.beat(t, 10*time.Second)
	}
	if r.asked != 0 {
		t.Fatalf("it asked for the cluster's key %d times, want never while nothing has changed", r.asked)
	}
	r.file = fresh[0].String() + "\n" + old[0].String() + "\n"
	r.beat(t, 10*time.Second)
	if key, err := b.keys.stateKey(); r.held().Public() != fresh.Public() || !r.held().Holds(old.Public()) || key != old.Public() || err != nil || b.keys.makers().Public() != old.Public() {
		t.Errorf("it has %s and seals to %s (%v), want both identities and the cluster's key, the old one", seal.Fingerprint(r.held().Public()), key, err)
	}
	got, _, err := b.open(assignmentOf(t, map[string]string{"before": sealed(t, old, "before", "acme/prod", "hidden-before"), "after": sealed(t, fresh, "after", "acme/prod", "hidden-after")}))
	if err != nil || len(got) != 2 {
		t.Errorf("openSealed() = %s, %v, want what is sealed to either", got, err)
	}

	r.world.Exec(t, "SELECT public.set_cluster_key($1, $2)", r.world.Cluster, fresh.Public())
	r.beat(t, clusterKeyEvery)
	if key, err := b.keys.stateKey(); key != fresh.Public() || err != nil || b.keys.makers().Public() != fresh.Public() {
		t.Errorf("it seals to %s (%v), want the cluster's new key", key, err)
	}
	if r.asked != 2 || !strings.Contains(r.log.String(), "the cluster's key is this agent's now") {
		t.Errorf("it asked %d times, want twice: when the file had changed, and a minute later. Its log:\n%s", r.asked, r.log)
	}
	if strings.Contains(r.log.String(), "AGE-SECRET-KEY") {
		t.Errorf("the log has an identity:\n%s", r.log)
	}
}

// A cluster whose key was taken away gets the one that the agent has now.
func TestForgottenClusterKeyBecomesTheNewOne(t *testing.T) {
	t.Parallel()
	r := newRotating(t, seal.Identities{newIdentity(t)})
	fresh := seal.Identities{newIdentity(t)}
	r.world.Exec(t, "SELECT public.set_cluster_key($1, NULL)", r.world.Cluster)
	r.file = fresh[0].String()
	r.beat(t, 10*time.Second)
	if got := r.world.Text(t, "SELECT age_public_key FROM public.clusters WHERE id = $1", r.world.Cluster); got != fresh.Public() || r.clusterKey() != got {
		t.Errorf("the cluster's key is %s, and to the agent %s; want the agent's new one", got, r.clusterKey())
	}
}

// What cannot be read, or is half written, changes nothing and is told once.
func TestIdentitiesThatCannotBeReadAgain(t *testing.T) {
	t.Parallel()
	own := seal.Identities{newIdentity(t)}
	r := newRotating(t, own)
	whole := r.file
	r.file = whole[:20]
	r.beat(t, time.Second)
	r.err = errors.New("no such file")
	r.beat(t, time.Second)
	if r.held().Public() != own.Public() || r.asked != 0 || strings.Count(r.log.String(), "level=WARN") != 1 || strings.Contains(r.log.String(), whole[:20]) {
		t.Errorf("it has %s, asked %d times and says\n%swant its identity, and one warning", seal.Fingerprint(r.held().Public()), r.asked, r.log)
	}
	r.file, r.err = whole, nil
	r.beat(t, time.Second)
	r.file = ""
	r.beat(t, time.Second)
	if strings.Count(r.log.String(), "level=WARN") != 2 {
		t.Errorf("the log is\n%swant a warning of the second time as well", r.log)
	}
}

// Heartbeats may be well where a registration is refused: somebody who looks why
// the new key does not come finds it in the log, once.
func TestRefusedRegistrationIsTold(t *testing.T) {
	t.Parallel()
	own, fresh := seal.Identities{newIdentity(t)}, seal.Identities{newIdentity(t)}
	var log bytes.Buffer
	k := &keys{
		identity: Identity{File: "/identity", Text: own[0].String(), Read: func() (string, error) { return fresh[0].String(), nil }},
		public:   queue.NewPublicKey(own.Public()), own: own, cluster: own.Public(), log: slog.New(slog.NewTextHandler(&log, nil)),
	}
	answer := error(&queue.Error{Kind: queue.Unavailable, Message: "away"})
	register := func(context.Context) (queue.Registration, error) {
		return queue.Registration{ClusterKey: own.Public()}, answer
	}
	for _, step := range []struct {
		answer error
		want   int
	}{
		{answer, 0}, {&queue.Error{Kind: queue.Refused, Message: "the name is taken"}, 1},
		{&queue.Error{Kind: queue.Refused, Message: "the name is taken"}, 1},
		{nil, 1}, {&queue.Error{Kind: queue.Refused, Message: "the name is taken"}, 2},
	} {
		answer = step.answer
		k.renew(t.Context(), k.askAgain, register)
		if got := strings.Count(log.String(), "the name is taken"); got != step.want {
			t.Errorf("after %v it has told %d times, want %d:\n%s", step.answer, got, step.want, &log)
		}
	}
}
