package bench

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// BenchmarkIdle is what agents that have nothing to do cost the database: the
// processor time of the server's process, for 1,000 questions and for 1,000
// heartbeats, and what 1,000 agents are by that, at the intervals that agents
// are told.
//
// Bare is one statement each that looks up a digest and, by an index, that
// nothing is queued, or stamps a row.
func BenchmarkIdle(b *testing.B) {
	for _, c := range []struct{ name, fill string }{
		{"queue=empty", ""},
		{"queue=busy", fillBusy},
		{"queue=elsewhere", fillElsewhere},
	} {
		b.Run(c.name, func(b *testing.B) { idle(b, c.fill) })
	}
}

const (
	// fillBusy queues 20,000 provisions on 100 workspaces that are busy.
	fillBusy = `DO $$ BEGIN
		SET LOCAL session_replication_role = replica;
		INSERT INTO public.workspaces (org_id, cluster_id, name) SELECT c.org_id, c.id, 'w' || n FROM public.clusters c, generate_series(1, 100) n;
		INSERT INTO public.provisions (org_id, cluster_id, workspace_id, config_snapshot)
		SELECT w.org_id, w.cluster_id, w.id, '{}' FROM public.workspaces w, generate_series(1, 200);
		WITH c AS (INSERT INTO tendril.claims (id, provision_id, workspace_id, cluster_id, instance_id, boot_id, host, lease_until)
			SELECT DISTINCT ON (workspace_id) gen_random_uuid(), id, workspace_id, cluster_id, cluster_id, cluster_id, 'host', now() + interval '1 day'
			FROM public.provisions ORDER BY workspace_id, number RETURNING *)
		UPDATE public.workspaces SET running_claim = c.id FROM c WHERE workspaces.id = c.workspace_id;
		UPDATE public.provisions SET status = 'PROCESSING' FROM tendril.claims c WHERE c.provision_id = provisions.id;
		PERFORM tendril.refresh_head(id) FROM public.workspaces;
	END $$`
	// fillElsewhere queues a provision on each of 8,000 workspaces that are for
	// other agents, which are away.
	fillElsewhere = `DO $$ BEGIN
		SET LOCAL session_replication_role = replica;
		INSERT INTO public.workspaces (org_id, cluster_id, name, home_instance, unsaved_state_on)
		SELECT c.org_id, c.id, 'w' || n, CASE WHEN n % 2 = 0 THEN gen_random_uuid() END, CASE WHEN n % 2 = 1 THEN gen_random_uuid() END
		FROM public.clusters c, generate_series(1, 8000) n;
		INSERT INTO public.provisions (org_id, cluster_id, workspace_id, config_snapshot)
		SELECT w.org_id, w.cluster_id, w.id, '{}' FROM public.workspaces w;
		PERFORM tendril.refresh_head(id) FROM public.workspaces;
	END $$`
)

func idle(b *testing.B, fill string) {
	const calls = 2000
	ctx := b.Context()
	w := queuetest.NewWorld(b)
	if err := steps(ctx, w.Conn, nil, fill,
		`CREATE TABLE public.bare_tokens (digest bytea PRIMARY KEY)`,
		`INSERT INTO public.bare_tokens VALUES (sha256('x'))`,
		`CREATE TABLE public.bare_queue (id bigint PRIMARY KEY, claimed_at timestamptz)`,
		`CREATE INDEX ON public.bare_queue (id) WHERE claimed_at IS NULL`,
		`CREATE TABLE public.bare_agents (id int PRIMARY KEY, seen_at timestamptz)`,
		`INSERT INTO public.bare_agents VALUES (1)`,
		`VACUUM ANALYZE`); err != nil {
		b.Fatal(err)
	}
	ours, bare := newWorkers(b, w, 1)[0], connections(b, w.URL, 1)[0]
	claim := uuid.New() // the same id again and again, as an agent asks
	poll := func() error {
		if err := ours.claim(ctx, claim); !errors.Is(err, pgx.ErrNoRows) {
			return errors.Join(errors.New("an empty poll got an answer"), err)
		}
		return nil
	}
	beat := func() error { return ours.beat(ctx) }
	barePoll := func() error {
		var known bool
		var id *int64
		return bare.QueryRow(ctx, `SELECT EXISTS (SELECT FROM public.bare_tokens WHERE digest = sha256($1)),
			(SELECT id FROM public.bare_queue WHERE claimed_at IS NULL ORDER BY id LIMIT 1)`, []byte("x")).Scan(&known, &id)
	}
	bareBeat := func() error {
		_, err := bare.Exec(ctx, `UPDATE public.bare_agents SET seen_at = clock_timestamp()
			WHERE id = 1 AND EXISTS (SELECT FROM public.bare_tokens WHERE digest = sha256($1))`, []byte("x"))
		return err
	}
	var polls, beats, barePolls, bareBeats time.Duration
	rounds := 0
	for b.Loop() {
		for range 2 {
			rounds++
			barePolls += serverTime(b, bare, calls, barePoll)
			polls += serverTime(b, ours.conn, calls, poll)
			bareBeats += serverTime(b, bare, calls, bareBeat)
			beats += serverTime(b, ours.conn, calls, beat)
		}
	}
	per1000 := func(t time.Duration) float64 { return t.Seconds() * 1000 / float64(rounds*calls) }
	b.ReportMetric(per1000(barePolls), "bare-cpu-s/1000polls")
	b.ReportMetric(per1000(polls), "cpu-s/1000polls")
	b.ReportMetric(per1000(bareBeats), "bare-cpu-s/1000beats")
	b.ReportMetric(per1000(beats), "cpu-s/1000beats")
	var every, beatEvery float64
	if err := w.Conn.QueryRow(ctx, "SELECT extract(epoch FROM poll), extract(epoch FROM heartbeat) FROM tendril.settings").Scan(&every, &beatEvery); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(100*(per1000(polls)/every+per1000(beats)/beatEvery), "core-%")
	b.ReportMetric(100*(per1000(barePolls)/every+per1000(bareBeats)/beatEvery), "bare-core-%")
	only(b)
}

// serverTime is the processor time that a connection's server process takes for
// something done n times.
func serverTime(b *testing.B, conn *pgx.Conn, n int, do func() error) time.Duration {
	b.Helper()
	for range 10 { // plans are made once
		if err := do(); err != nil {
			b.Fatal(err)
		}
	}
	pid := int(conn.PgConn().PID())
	before := cpuOf(b, pid)
	for range n {
		if err := do(); err != nil {
			b.Fatal(err)
		}
	}
	return cpuOf(b, pid) - before
}
