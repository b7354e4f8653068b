package pgqueue_test

import (
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/queue/queuetest"
)

// Whoever asks under the identity of an agent at work, as its operator does,
// must not supersede it, and leaves no trace.
func TestStandingDisturbsNobody(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	agent := queuetest.NewAgent("one")
	q := open(t, w, w.Token, agent)
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	const trace = "SELECT md5(string_agg(a::text, ',')) || (SELECT xmin || md5(c::text) FROM public.clusters c) FROM public.agents a"
	before := w.Text(t, trace)
	ask := func(about queue.Agent) queue.Standing {
		t.Helper()
		asker, err := pgqueue.New(t.Context(), pgqueue.Options{URL: w.AgentURL(t), ListenURL: "off", Token: w.Token, Agent: about})
		if err != nil {
			t.Fatal(err)
		}
		defer asker.Close()
		s, err := asker.Standing(t.Context())
		if err != nil {
			t.Fatalf("Standing() = %v, want nil", err)
		}
		return s
	}
	self := agent
	self.Boot = queuetest.NewAgent("one").Boot
	got := ask(self)
	if got.ClusterName != "prod" || got.ClusterID != w.Cluster || got.Contract != queue.Contract || got.Paused || got.NameTakenOn != "" {
		t.Errorf("Standing() = %+v, want cluster prod, contract %d, not paused, and the name free for the instance that has it", got, queue.Contract)
	}
	if off := time.Since(got.Now).Abs(); off > time.Minute {
		t.Errorf("Standing().Now is %s off", off)
	}
	if got := ask(queuetest.NewAgent("one")); got.NameTakenOn != "one.example" {
		t.Errorf("Standing(another instance).NameTakenOn = %q, want one.example", got.NameTakenOn)
	}
	if after := w.Text(t, trace); after != before {
		t.Error("Standing() changed the agents' or clusters' rows, want nothing written")
	}
	if _, err := q.Heartbeat(t.Context(), nil); err != nil {
		t.Errorf("Heartbeat() after Standing() = %v, want nil", err)
	}
	w.Exec(t, "UPDATE public.clusters SET paused_at = now()")
	if got := ask(self); !got.Paused {
		t.Error("Standing().Paused = false of a paused cluster")
	}
}

func TestStandingOfAWrongToken(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	q, err := pgqueue.New(t.Context(), pgqueue.Options{URL: w.AgentURL(t), ListenURL: "off", Token: "tnd_wrong", Agent: queuetest.NewAgent("one")})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if _, err := q.Standing(t.Context()); queue.KindOf(err) != queue.Unauthorized {
		t.Errorf("Standing(wrong token) = %v, want it unauthorized", err)
	}
}
