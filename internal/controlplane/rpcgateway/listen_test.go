package rpcgateway

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest/pgbouncer"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// What is not heard of, behind a pooler in transaction mode, is looked for all
// the same.
func TestListenerThatHearsNothing(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	pool, err := pgxpool.New(t.Context(), pgbouncer.Start(t, w.URL, nil).URL(t, w.URL))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	looked := make(chan struct{})
	done := make(chan struct{})
	l := startListener(pool, nil, 20*time.Millisecond, func() {
		select {
		case looked <- struct{}{}:
		case <-done:
		}
	}, newWaiting(1))
	defer l.stop()
	defer close(done)
	for range 3 {
		select {
		case <-looked:
		case <-patience.After(time.Minute):
			t.Fatal("the functions are not checked again, want it after each silence")
		}
	}
}
