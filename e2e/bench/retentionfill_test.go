package bench

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strconv"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/e2e/site"
)

const (
	// logRowsEnv says how many rows of logs there are to be.
	logRowsEnv = "TENDRIL_BENCH_LOG_ROWS"
	// rowsPerLog is what a log has on average.
	rowsPerLog = 5000
)

// oldLogs are logs of runs that ended ten days ago, but for every twentieth, which
// ended today and lies at the end of the table. The first is forty times as long
// as the others.
type oldLogs struct {
	*site.Site
	rows int
	ids  []uuid.UUID // the first is the long one, the last are young
}

func newOldLogs(b *testing.B) *oldLogs {
	b.Helper()
	w := &oldLogs{Site: site.New(b), rows: 1_000_000}
	if text := os.Getenv(logRowsEnv); text != "" {
		var err error
		if w.rows, err = strconv.Atoi(text); err != nil || w.rows < 100*rowsPerLog {
			b.Fatalf("%s=%s: want a number from %d on", logRowsEnv, text, 100*rowsPerLog)
		}
	}
	logs := w.rows/rowsPerLog - 39
	w.Exec(b, "UPDATE tendril.settings SET log_archive_after = NULL WHERE only_row") // trellis serve waits for gc
	w.Exec(b, "SET session_replication_role = replica")
	w.Exec(b, `INSERT INTO public.provisions (org_id, cluster_id, workspace_id, config_snapshot, status, started_at, finished_at)
		SELECT org_id, id, gen_random_uuid(), '{}', 'SUCCESS', now(), now() - CASE WHEN n <= $1::int * 19 / 20 THEN interval '10 days' ELSE '1 hour' END
		FROM public.clusters, generate_series(1, $1::int) n WHERE id = $2`, logs, w.Cluster)
	w.Exec(b, "INSERT INTO tendril.log_ends (provision_id, org_id, ended_at) SELECT id, org_id, finished_at FROM public.provisions")
	ids, err := w.Conn.Query(b.Context(), "SELECT id FROM public.provisions ORDER BY number")
	if err != nil {
		b.Fatal(err)
	}
	if w.ids, err = pgx.CollectRows(ids, pgx.RowTo[uuid.UUID]); err != nil {
		b.Fatal(err)
	}
	for i, id := range w.ids {
		rows := rowsPerLog
		if i == 0 {
			rows *= 40
		}
		w.Exec(b, printed, id, w.Org, rows)
	}
	w.Exec(b, `INSERT INTO tendril.log_heads (provision_id, org_id, next_seq, bytes)
		SELECT provision_id, org_id, max(seq) + 1, sum(octet_length(log_chunk)) FROM public.provision_logs GROUP BY 1, 2`)
	w.Exec(b, "SET session_replication_role = origin")
	w.Exec(b, "VACUUM ANALYZE")
	return w
}

// printed is what engines print: a few lines to a row, and now and then a whole
// chunk of 8 KB. 400 bytes on average.
const printed = `
	INSERT INTO public.provision_logs (provision_id, seq, org_id, stream_type, log_chunk, emitted_at)
	SELECT $1::uuid, n, $2, 'STDOUT',
	  (SELECT string_agg(format(E'aws_instance.web["%s-%s"]: Creation complete after %ss [id=i-%s]\n', n, k, n % 60, left(md5($1::uuid::text || n || k), 17)), '')
	   FROM generate_series(1, CASE WHEN n % 50 = 0 THEN 105 ELSE 1 + n % 5 END) k),
	  now() - interval '10 days' + n * interval '13 milliseconds'
	FROM generate_series(1, $3::int) n`

// digest is of all that people read of some logs, in whatever pages.
func (w *oldLogs) digest(b *testing.B) string {
	b.Helper()
	sum := sha256.New()
	for _, i := range []int{0, 1, len(w.ids) / 2, len(w.ids) - 1} {
		for after, more := int64(0), true; more; {
			rows, err := w.Conn.Query(b.Context(), "SELECT seq, seq || ' ' || stream_type || ' ' || emitted_at || ' ' || log_chunk FROM tendril.log_page($1, $2, 1000, 1048576)", w.ids[i], after)
			if err != nil {
				b.Fatal(err)
			}
			more = false
			var text string
			if _, err := pgx.ForEachRow(rows, []any{&after, &text}, func() error {
				more = true
				_, err := io.WriteString(sum, text)
				return err
			}); err != nil {
				b.Fatal(err)
			}
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// size is what logs take on the disk, in MB.
func (w *oldLogs) size(b *testing.B, tables ...string) float64 {
	b.Helper()
	var all int64
	for _, table := range tables {
		var bytes int64
		if err := w.Conn.QueryRow(b.Context(), fmt.Sprintf("SELECT pg_total_relation_size('public.%s')", table)).Scan(&bytes); err != nil {
			b.Fatal(err)
		}
		all += bytes
	}
	return float64(all) / 1e6
}
