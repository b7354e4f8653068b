package retention_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/controlplane/retention"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// world is a database with logs in it, and a session that cleans up there.
type world struct {
	*queuetest.World
	session *retention.Session
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{World: queuetest.NewWorld(t)}
	session, err := retention.Open(t.Context(), w.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close(context.Background()) })
	w.session = session
	return w
}

// logs makes so many provisions that ended so long ago, with that many rows each.
func (w *world) logs(t *testing.T, count, rows, bytes int, ago string) {
	t.Helper()
	w.Exec(t, `
		WITH p AS (INSERT INTO public.provisions (cluster_id, config_snapshot)
		  SELECT $1, jsonb_build_object('template_source', jsonb_build_object('repo', 'https://git.example/a/b', 'version', 'v1'), 'workspace', 'w' || gen_random_uuid())
		  FROM generate_series(1, $2::int) RETURNING id, org_id),
		h AS (INSERT INTO tendril.log_heads (provision_id, org_id, next_seq, bytes) SELECT id, org_id, $3::int + 1, $3::bigint * $4::int FROM p)
		INSERT INTO public.provision_logs (provision_id, seq, org_id, stream_type, log_chunk, emitted_at)
		SELECT p.id, n, p.org_id, 'STDOUT', left(repeat(md5(p.id::text || n), $4::int / 32 + 1), $4::int), now() FROM p, generate_series(1, $3::int) n`,
		w.Cluster, count, rows, bytes)
	w.Exec(t, "UPDATE public.provisions SET status = 'CANCELLED', finished_at = clock_timestamp() - $1::interval WHERE status = 'QUEUED'", ago)
}

// open is a connection of somebody else's.
func (w *world) open(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), w.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// digest is of all that is read of all logs.
func (w *world) digest(t *testing.T) (digest string) {
	t.Helper()
	var rows int
	ids, err := w.Conn.Query(t.Context(), "SELECT id FROM public.provisions ORDER BY number")
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(ids, pgx.RowTo[uuid.UUID])
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range all {
		for after := int64(0); ; {
			var last *int64
			var text string
			if err := w.Conn.QueryRow(t.Context(), "SELECT max(seq), coalesce(md5($4 || string_agg(seq || log_chunk, '' ORDER BY seq)), '') FROM tendril.log_page($1, $2, $3, 1048576)",
				id, after, 1000, digest).Scan(&last, &text); err != nil {
				t.Fatal(err)
			}
			if last == nil {
				break
			}
			rows += int(*last - after)
			after, digest = *last, text
		}
	}
	if rows == 0 {
		t.Fatal("there is no row: nothing is shown")
	}
	return digest
}
