package pgqueue_test

import (
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/pgtest/pgbouncer"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// Every case again, by way of a pooler in transaction mode that has one
// connection for everybody. The agents of a case poll, and listen past the
// pooler, in turn.
func TestConformanceThroughAPooler(t *testing.T) {
	t.Parallel()
	pooler := pgbouncer.Start(t, pgtest.New(t).URL, map[string]string{"default_pool_size": "1"})
	var roles sync.Map // one for all agents of a case: a pool is for one role
	var opened atomic.Int32
	queuetest.Run(t, func(t *testing.T, w *queuetest.World, token string, agent queue.Agent) queue.Queue {
		t.Helper()
		url, ok := roles.Load(w)
		if !ok {
			url = w.AgentURL(t)
			roles.Store(w, url)
		}
		direct := url.(string)
		listen := "off"
		if opened.Add(1)%2 == 0 {
			listen = direct
		}
		q, err := pgqueue.New(t.Context(), pgqueue.Options{
			URL: pooler.URL(t, direct), ListenURL: listen, Token: token, Agent: agent,
		})
		if err != nil {
			t.Fatalf("pgqueue.New() = %v, want nil", err)
		}
		t.Cleanup(q.Close)
		return q
	})
}

// A session for LISTEN of its own wakes an agent whose calls go through a pooler.
func TestDeployWakesPastThePooler(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	direct := w.AgentURL(t)
	q, err := pgqueue.New(t.Context(), pgqueue.Options{
		URL: pgbouncer.Start(t, w.URL, nil).URL(t, direct), ListenURL: direct, Token: w.Token, Agent: queuetest.NewAgent("one"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, q.Work(), "the wake that every new LISTEN session gives")
	w.Deploy(t, "a")
	await(t, q.Work(), "a wake for the deploy")
}

// An agent that nobody told of the pooler: LISTEN is accepted, so nothing but
// the silence shows that it will never be woken.
func TestDeafListenerIsTold(t *testing.T) {
	t.Parallel()
	for _, size := range []string{"1", "4"} {
		t.Run(size+" connections", func(t *testing.T) {
			t.Parallel()
			w := queuetest.NewWorld(t)
			pooler := pgbouncer.Start(t, w.URL, map[string]string{"default_pool_size": size})
			log := &logged{lines: make(chan string, 10)}
			q, err := pgqueue.New(t.Context(), pgqueue.Options{
				URL: pooler.URL(t, w.AgentURL(t)), Token: w.Token, Agent: queuetest.NewAgent("one"),
				CallTimeout: quick, Log: slog.New(slog.NewTextHandler(log, nil)),
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(q.Close)
			got := log.next(t)
			for _, want := range []string{"level=WARN", "transaction mode", "polled", "queue.listen_url"} {
				if !strings.Contains(got, want) {
					t.Errorf("log = %s, want %q in it", got, want)
				}
			}
			select {
			case <-q.Work():
				t.Error("Work() received from a session that hears nothing")
			default:
			}
			if _, err := q.Register(t.Context()); err != nil {
				t.Errorf("Register() = %v, want nil: only waking does not work", err)
			}
		})
	}
}

// A connection for LISTEN of its own that is refused meets nothing that the
// calls meet, so it is told at once.
func TestRefusedListenIsTold(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	log := &logged{lines: make(chan string, 10)}
	q, err := pgqueue.New(t.Context(), pgqueue.Options{
		URL: w.AgentURL(t), ListenURL: strings.Replace(w.AgentURL(t), ":test@", ":s3cret@", 1), Token: w.Token,
		Agent: queuetest.NewAgent("one"), Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	if got := log.next(t); !strings.Contains(got, "28P01") || !strings.Contains(got, "level=WARN") || strings.Contains(got, "s3cret") {
		t.Errorf("log = %s, want a warning with SQLSTATE 28P01 and without the password", got)
	}
}

// A pooler refuses a connection whose startup sets what it does not know. What
// the agent sets itself must not be among that, and what the URL sets is said.
func TestPoolerRefusesAParameterOfTheURL(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	url := pgbouncer.Start(t, w.URL, nil).URL(t, w.AgentURL(t))
	q, err := pgqueue.New(t.Context(), pgqueue.Options{
		URL: url + "&statement_timeout=3000", ListenURL: "off", Token: w.Token, Agent: queuetest.NewAgent("one"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	_, err = q.Register(t.Context())
	if queue.KindOf(err) != queue.Unauthorized || !strings.Contains(err.Error(), "statement_timeout") || !strings.Contains(err.Error(), "ALTER ROLE") {
		t.Errorf("Register(startup parameter) = %v, want it refused, naming the parameter and what to do", err)
	}
}

// The pooler's connections end under it, those in use too: calls fail in a way
// that is repeated, and work again at once.
func TestServerConnectionsDieBehindThePooler(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	// A connection that ends as it is being made has PgBouncer wait that long
	// before it makes another: 15 s, were it not told.
	pooler := pgbouncer.Start(t, w.URL, map[string]string{"default_pool_size": "2", "server_login_retry": "0.1"})
	direct := w.AgentURL(t)
	at, err := url.Parse(direct)
	if err != nil {
		t.Fatal(err)
	}
	role := at.User.Username()
	q, err := pgqueue.New(t.Context(), pgqueue.Options{
		URL: pooler.URL(t, direct), ListenURL: "off", Token: w.Token, Agent: queuetest.NewAgent("one"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var calls sync.WaitGroup
	var answered atomic.Int32
	for range 4 {
		calls.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if _, err := q.Heartbeat(t.Context(), queue.Beat{}); err == nil {
					answered.Add(1)
				} else if queue.KindOf(err) != queue.Unavailable {
					t.Errorf("Heartbeat() as its connection ends = %v, want it unavailable", err)
				}
			}
		})
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	const rounds = 20
	ended := 0
	for range rounds {
		before := answered.Load()
		if w.Text(t, "SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_activity WHERE usename = $1 AND datname = current_database()", role) != "0" {
			ended++
		}
		for limit := patience.Begin(time.Minute); answered.Load() < before+8; <-tick.C {
			if limit.Over() {
				t.Fatal("no call was answered for a minute after the connections had ended")
			}
		}
	}
	close(done)
	calls.Wait()
	if ended < rounds/2 { // now and then the pooler is about to make one
		t.Errorf("connections were ended in %d of %d rounds, want most", ended, rounds)
	}
}

// logged hands out what is logged, a line at a time.
type logged struct{ lines chan string }

func (l *logged) Write(line []byte) (int, error) {
	select {
	case l.lines <- string(line):
	default:
	}
	return len(line), nil
}

func (l *logged) next(t *testing.T) string {
	t.Helper()
	select {
	case line := <-l.lines:
		return line
	case <-patience.After(30 * time.Second):
		t.Fatal("timed out waiting for a line in the log")
		return ""
	}
}
