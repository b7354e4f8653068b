package queuetest

import (
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// Rotates holds a queue to this: a token that is replaced while an agent is at
// work, by set, counts for all its calls from the next heartbeat on.
func Rotates(t *testing.T, w *World, q queue.Queue, set func(token string)) {
	t.Helper()
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	fresh := w.Text(t, "SELECT token FROM public.rotate_cluster_token($1, '0 seconds')", w.Cluster)
	_, err := q.Heartbeat(t.Context(), nil)
	_ = wantKind(t, "Heartbeat(the token before)", err, queue.Unauthorized)
	set(fresh)
	if _, err := q.Heartbeat(t.Context(), nil); err != nil {
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
			if pulse, err := q.Heartbeat(t.Context(), []uuid.UUID{claim}); err != nil || len(pulse.Lost) != 0 {
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
	if _, err := q.Heartbeat(t.Context(), nil); err != nil {
		t.Errorf("Heartbeat(this cluster's token again) = %v, want nil", err)
	}
}
