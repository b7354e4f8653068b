package queuetest

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/queue"
)

// standingDisturbsNobody: whoever asks under the identity of an agent at work,
// as its operator does, must not supersede it, and leaves no trace.
func standingDisturbsNobody(t *testing.T, w *World, open Open) {
	agent := NewAgent("one")
	q := open(t, w, w.Token, agent)
	mustRegister(t, q)
	const trace = "SELECT md5(string_agg(a::text, ',')) || (SELECT xmin || md5(c::text) FROM public.clusters c) FROM public.agents a"
	before := w.Text(t, trace)
	ask := func(about queue.Agent) queue.Standing {
		t.Helper()
		s, err := open(t, w, w.Token, about).Standing(t.Context())
		if err != nil {
			t.Fatalf("Standing() = %v, want nil", err)
		}
		return s
	}
	again := agent
	again.Boot = uuid.New()
	got := ask(again)
	if got.ClusterName != "prod" || got.ClusterID != w.Cluster || got.Contract != queue.Contract || got.Paused || got.NameTakenOn != "" {
		t.Errorf("Standing() = %+v, want cluster prod, contract %d, not paused, and the name free for the instance that has it", got, queue.Contract)
	}
	if off := time.Since(got.Now).Abs(); off > time.Minute {
		t.Errorf("Standing().Now is %s off", off)
	}
	if got := ask(NewAgent("one")); got.NameTakenOn != "one.example" {
		t.Errorf("Standing(another instance).NameTakenOn = %q, want one.example", got.NameTakenOn)
	}
	if len(got.BroadPublications) > 0 {
		t.Errorf("Standing().BroadPublications = %q, want none", got.BroadPublications)
	}
	w.Exec(t, "CREATE PUBLICATION everything FOR ALL TABLES")
	if got := ask(again).BroadPublications; len(got) != 1 || got[0] != "everything" {
		t.Errorf("Standing().BroadPublications = %q, want everything", got)
	}
	w.Exec(t, "DROP PUBLICATION everything")
	if after := w.Text(t, trace); after != before {
		t.Error("Standing() changed the agents' or clusters' rows, want nothing written")
	}
	if _, err := q.Heartbeat(t.Context(), nil); err != nil {
		t.Errorf("Heartbeat() after Standing() = %v, want nil", err)
	}
	w.Exec(t, "UPDATE public.clusters SET paused_at = now()")
	if !ask(again).Paused {
		t.Error("Standing().Paused = false of a paused cluster")
	}
	_, err := open(t, w, "tnd_wrong", agent).Standing(t.Context())
	_ = wantKind(t, "Standing(wrong token)", err, queue.Unauthorized)
}
