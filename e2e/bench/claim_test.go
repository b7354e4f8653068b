package bench

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/e2e/site"
)

// BenchmarkClaimLatency is the time from when a row is about to be inserted
// until an idle agent's claim is written. What follows is a refusal, so that
// the agent is idle again soon: nothing is run.
//
// Bare is a session that LISTENs and, when woken, takes the row of a plain table
// by UPDATE … SKIP LOCKED. Either time ends with the clock of the database in
// the claiming statement, before its commit.
func BenchmarkClaimLatency(b *testing.B) {
	const deploys = 100
	ours := newClaimer(b, site.New(b))
	bare := newBareQueue(b, ours.Site)
	ours.claim() // connections and plans are made once
	bare.claim()
	var times, limit series
	for b.Loop() {
		for range deploys {
			limit.add(bare.claim())
			times.add(ours.claim())
		}
	}
	limit.report(b, "bare-", 50, 99)
	times.report(b, "", 50, 99)
	only(b)
}

// BenchmarkClaimLatencyHTTPS is that of an agent that reaches the queue through
// trellis serve, which holds its call, beside one with a connection to the database.
func BenchmarkClaimLatencyHTTPS(b *testing.B) {
	const deploys = 100
	far := site.New(b)
	far.Serve()
	ours, direct := newClaimer(b, far), newClaimer(b, site.New(b))
	ours.claim()
	direct.claim()
	var times, limit series
	for b.Loop() {
		for range deploys {
			limit.add(direct.claim())
			times.add(ours.claim())
		}
	}
	limit.report(b, "direct-", 50, 99)
	times.report(b, "", 50, 99)
	only(b)
}

// BenchmarkCancel is the time from when a person is about to cancel a run until its engine gets
// the one SIGINT.
func BenchmarkCancel(b *testing.B) {
	b.Run("direct", func(b *testing.B) { cancelled(b, site.New(b)) })
	b.Run("https", func(b *testing.B) {
		s := site.New(b)
		s.Serve()
		cancelled(b, s)
	})
}

func cancelled(b *testing.B, s *site.Site) {
	const runs = 25
	w := printersAt(b, s, 1, printing{During: "apply", Lines: 1})
	w.agent.Start()
	var times series
	for b.Loop() {
		for range runs {
			id := w.deploy(b, 1)[0]
			began := time.Now()
			w.Exec(b, "SELECT public.cancel_provision($1)", id)
			w.AwaitEnd(id)
			times.add(w.journal.interrupted(b).Sub(began))
		}
	}
	times.report(b, "", 50, 99)
	only(b)
}

// claimer is a site whose agent is idle.
type claimer struct {
	*site.Site
	b    *testing.B
	ends *listener
}

func newClaimer(b *testing.B, s *site.Site) *claimer {
	b.Helper()
	a := s.NewAgent("one", 2, "")
	a.Set("TENDRIL_QUEUE_POLL_INTERVAL", "0s") // what is advised
	a.Start().AwaitOutput("registered")
	return &claimer{Site: s, b: b, ends: listen(b, s.URL, "tendril_provision")}
}

// claim answers how long a row waited.
func (c *claimer) claim() time.Duration {
	c.b.Helper()
	began := time.Now()
	id := c.DeploySnapshot(c.b, site.SnapshotOf("https://git.example/not/allowed", "here", nil))
	c.ends.ended("FAILED/repo_refused", id)
	var at time.Time
	if err := c.Conn.QueryRow(c.b.Context(), "SELECT created_at FROM tendril.claims WHERE provision_id = $1", id).Scan(&at); err != nil {
		c.b.Fatal(err)
	}
	return at.Sub(began)
}

// bareQueue is the least that a queue in PostgreSQL can be.
type bareQueue struct {
	b      *testing.B
	insert *pgx.Conn
	wakes  *listener
	claims *pgx.Conn
}

func newBareQueue(b *testing.B, s *site.Site) *bareQueue {
	b.Helper()
	s.Exec(b, "CREATE TABLE public.bare_queue (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, snapshot jsonb, claimed_at timestamptz)")
	s.Exec(b, "CREATE INDEX ON public.bare_queue (id) WHERE claimed_at IS NULL")
	q := &bareQueue{b: b, insert: s.Conn, wakes: listen(b, s.URL, "bare_queue")}
	var err error
	if q.claims, err = pgx.Connect(b.Context(), s.URL); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = q.claims.Close(b.Context()) })
	return q
}

func (q *bareQueue) claim() time.Duration {
	q.b.Helper()
	claimed := make(chan time.Time, 1)
	go func() {
		defer close(claimed)
		if _, err := q.wakes.conn.WaitForNotification(q.b.Context()); err != nil {
			q.b.Error(err)
			return
		}
		var at time.Time
		if err := q.claims.QueryRow(q.b.Context(), `UPDATE public.bare_queue SET claimed_at = clock_timestamp()
			WHERE id = (SELECT id FROM public.bare_queue WHERE claimed_at IS NULL ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
			RETURNING claimed_at`).Scan(&at); err != nil {
			q.b.Error(err)
		}
		claimed <- at
	}()
	began := time.Now()
	if _, err := q.insert.Exec(q.b.Context(), "WITH i AS (INSERT INTO public.bare_queue (snapshot) VALUES ('{}') RETURNING id) SELECT pg_notify('bare_queue', id::text) FROM i"); err != nil {
		q.b.Fatal(err)
	}
	return (<-claimed).Sub(began)
}
