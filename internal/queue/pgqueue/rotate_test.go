package pgqueue_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/pgurl"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// said is a text that is changed while others ask for it.
type said struct{ atomic.Pointer[string] }

func (s *said) set(text string) { s.Store(&text) }

func (s *said) now() (string, error) { return *s.Load(), nil }

func changeable(text string) *said {
	s := new(said)
	s.set(text)
	return s
}

// A password that is changed counts from the next connection on: that of calls,
// and that of the session that listens, whether they have one URL or two. Until
// the agent has the new one it is told that it is not let in, which says nothing
// about what it asked.
func TestChangedPassword(t *testing.T) {
	t.Parallel()
	for name, two := range map[string]bool{"one URL": false, "two URLs": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := queuetest.NewWorld(t)
			first := w.AgentURL(t)
			calls, listen := changeable(first), changeable(w.AgentURL(t))
			o := pgqueue.Options{URL: first, URLNow: calls.now, Token: w.Token, Agent: queuetest.NewAgent("one")}
			sources := []*said{calls}
			if two {
				o.ListenURL, o.ListenURLNow = *listen.Load(), pgurl.Source(listen.now)
				sources = append(sources, listen)
			}
			q, err := pgqueue.New(t.Context(), o)
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
			a, err := q.Claim(t.Context(), uuid.New())
			if err != nil || a == nil {
				t.Fatalf("Claim() = %v, %v, want the provision", a, err)
			}

			for _, source := range sources {
				config, err := pgx.ParseConfig(*source.Load())
				if err != nil {
					t.Fatal(err)
				}
				w.Exec(t, "ALTER ROLE "+config.User+" PASSWORD 'changed'")
				w.Exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", config.User)
			}
			for n := 0; n < 10 && queue.KindOf(err) == queue.Unavailable; n++ { // each connection that was open fails once, in its own way
				_, err = q.AppendLog(t.Context(), a.ClaimID, 1, []provision.LogChunk{{Stream: provision.Stdout, Text: "line\n"}})
			}
			if queue.KindOf(err) != queue.Unauthorized || !strings.Contains(err.Error(), "28P01") {
				t.Errorf("AppendLog() with the old password = %v, want Unauthorized: the line is not refused", err)
			}
			for _, source := range sources {
				source.set(strings.Replace(*source.Load(), ":test@", ":changed@", 1))
			}
			if _, err := q.Heartbeat(t.Context(), queue.Beat{}); err != nil {
				t.Errorf("Heartbeat() with the new password = %v, want nil", err)
			}
			await(t, q.Work(), "the session with the new password")
			w.Deploy(t, "b")
			await(t, q.Work(), "a wake for what is deployed then")
		})
	}
}

// A token that is rotated counts from the next heartbeat on, for all calls.
func TestRotatedToken(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	token, log := changeable(w.Token), bytes.Buffer{}
	q, err := pgqueue.New(t.Context(), pgqueue.Options{
		URL: w.AgentURL(t), ListenURL: "off", Token: w.Token, TokenNow: func() string { return *token.Load() },
		Agent: queuetest.NewAgent("one"), Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	queuetest.Rotates(t, w, q, token.set)
	for why, times := range map[string]int{"is another cluster's": 2, "is not accepted": 1} { // the first may come again after the other
		if got := strings.Count(log.String(), why); got < 1 || got > times {
			t.Errorf("the log says %d times that the token %s, want each token told of once:\n%s", got, why, &log)
		}
	}
	if strings.Contains(log.String(), "tnd_") {
		t.Errorf("the log has a token:\n%s", &log)
	}
}
