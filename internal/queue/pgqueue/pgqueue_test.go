package pgqueue_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func open(t *testing.T, w *queuetest.World, token string, agent queue.Agent) queue.Queue {
	t.Helper()
	q, err := pgqueue.New(t.Context(), pgqueue.Options{URL: w.AgentURL(t), Token: token, Agent: agent})
	if err != nil {
		t.Fatalf("pgqueue.New() = %v, want nil", err)
	}
	t.Cleanup(q.Close)
	return q
}

func TestConformance(t *testing.T) {
	t.Parallel()
	queuetest.Run(t, open)
}

func TestDeployWakesTheAgent(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	q := open(t, w, w.Token, queuetest.NewAgent("one"))
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, q.Work(), "the wake that every new LISTEN session gives")
	w.Deploy(t, "a")
	await(t, q.Work(), "a wake for the deploy")
}

func TestCancelWakesTheHeartbeat(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	q := open(t, w, w.Token, queuetest.NewAgent("one"))
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, q.Attention(), "the wake that every new LISTEN session gives")
	id := w.Deploy(t, "a")
	if _, err := q.Claim(t.Context(), uuid.New()); err != nil {
		t.Fatal(err)
	}
	w.Exec(t, "SELECT public.cancel_provision($1)", id)
	await(t, q.Attention(), "a wake for the cancel")
}

func TestListenerComesBack(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	q := open(t, w, w.Token, queuetest.NewAgent("one"))
	await(t, q.Work(), "the first session")
	w.Exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'")
	await(t, q.Work(), "the session after the connection was cut")
}

func TestUnreachableDatabaseIsUnavailable(t *testing.T) {
	t.Parallel()
	q, err := pgqueue.New(t.Context(), pgqueue.Options{
		URL: "postgres://agent:s3cret-password@127.0.0.1:1/none?connect_timeout=1", Token: "tnd_x", Agent: queuetest.NewAgent("one"),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	_, err = q.Register(t.Context())
	if queue.KindOf(err) != queue.Unavailable {
		t.Errorf("Register(unreachable) = %v, want an error of kind Unavailable", err)
	}
	if err == nil || strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "tnd_x") {
		t.Errorf("error = %v, want one without password and token", err)
	}
}

func TestDatabaseWithoutContract(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	q, err := pgqueue.New(t.Context(), pgqueue.Options{URL: db.URL, Token: "tnd_x", Agent: queuetest.NewAgent("one")})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	_, err = q.Register(t.Context())
	if queue.KindOf(err) != queue.Unavailable || !strings.Contains(err.Error(), "trellis migrate") {
		t.Errorf("Register(empty database) = %v, want it unavailable, saying to migrate", err)
	}
}

func await(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-patience.After(time.Minute):
		t.Fatalf("timed out waiting for %s", what)
	}
}
