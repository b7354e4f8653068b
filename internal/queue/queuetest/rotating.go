package queuetest

import (
	"testing"

	"github.com/google/uuid"

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
	if a, err := q.Claim(t.Context(), uuid.New()); err != nil || a == nil {
		t.Errorf("Claim(the new token) = %v, %v, want the provision", a, err)
	}
}
