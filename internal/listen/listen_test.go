package listen_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/listen"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// world is a listener on a database of its own, and what it tells.
type world struct {
	listen.Listener
	conn  *pgx.Conn
	heard chan string
	lost  chan error
	waits chan time.Duration
}

func newWorld(t *testing.T) *world {
	t.Helper()
	db := pgtest.New(t)
	config, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["application_name"] = "listener"
	sender := db.Conn(t) // the listener's own
	w := &world{conn: db.Conn(t), heard: make(chan string, 100), lost: make(chan error, 100), waits: make(chan time.Duration, 100)}
	w.Listener = listen.Listener{
		Connect:  func(ctx context.Context) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, config) },
		Channels: []string{"a", "b"}, Limit: time.Minute, Silence: time.Hour,
		Send:  func(ctx context.Context, channel, payload string) error { return notify(ctx, sender, channel, payload) },
		Began: func() { w.heard <- "began" },
		Heard: func(channel, payload string) { w.heard <- channel + " " + payload },
		Quiet: func() { w.heard <- "quiet" },
		Lost:  func(err error) { w.lost <- err },
		Wait:  func(_ context.Context, wait time.Duration) { w.waits <- wait },
	}
	return w
}

func notify(ctx context.Context, conn *pgx.Conn, channel, payload string) error {
	_, err := conn.Exec(ctx, "SELECT pg_notify($1, $2)", channel, payload)
	return err
}

// run listens until the test is over.
func (w *world) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

func want[T comparable](t *testing.T, from <-chan T, want T) {
	t.Helper()
	select {
	case got := <-from:
		if got != want {
			t.Fatalf("got %v, want %v", got, want)
		}
	case <-patience.After(time.Minute):
		t.Fatalf("timed out waiting for %v", want)
	}
}

// What is sent arrives, and after the connection was cut as well; its own probes are
// nobody's.
func TestHearsAndComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.run(t)
	for range 2 {
		want(t, w.heard, "began")
		if err := errors.Join(notify(t.Context(), w.conn, "a", "1"), notify(t.Context(), w.conn, "c", "2"), notify(t.Context(), w.conn, "b", "3")); err != nil {
			t.Fatal(err)
		}
		want(t, w.heard, "a 1")
		want(t, w.heard, "b 3")
		if _, err := w.conn.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'listener'"); err != nil {
			t.Fatal(err)
		}
		want(t, w.lost, nil)
		if wait := <-w.waits; wait > time.Second {
			t.Errorf("wait after a session that had begun = %s, want a moment", wait)
		}
	}
}

// A silence has the connection tried, by a probe where that is wanted.
func TestSilenceIsTried(t *testing.T) {
	t.Parallel()
	for name, probes := range map[string]bool{"asked": false, "probed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.Silence, w.ProbeSilence = 10*time.Millisecond, probes
			w.run(t)
			want(t, w.heard, "began")
			want(t, w.heard, "quiet")
			want(t, w.heard, "quiet")
		})
	}
}

// Where LISTEN is accepted and nothing arrives, that is said, and tried again soon; once
// it is certain, some minutes later.
func TestDeafSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Limit = 100 * time.Millisecond
	w.Send = func(context.Context, string, string) error { return nil }
	if err := w.Hears(t.Context()); !errors.Is(err, listen.ErrDeaf) {
		t.Errorf("Hears() = %v, want %v", err, listen.ErrDeaf)
	}
	w.run(t)
	var deaf int
	for deaf < 2 { // a slow machine may not get as far as that in the time
		select {
		case err := <-w.lost:
			wait := <-w.waits
			if errors.Is(err, listen.ErrDeaf) {
				deaf++
			} else {
				deaf = 0
			}
			if soon := wait < time.Minute; soon != (deaf < 2) {
				t.Fatalf("wait = %s after %d deaf sessions in a row", wait, deaf)
			}
		case what := <-w.heard:
			t.Fatalf("heard %q, want nothing", what)
		case <-patience.After(time.Minute):
			t.Fatal("a deaf session is not noticed")
		}
	}
}
