package sql_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/olddb"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

// step is what one call of archive_logs says.
type step struct {
	Logs          int
	Chunks, Bytes int64
	More          bool
}

// archive makes one such call; unless it says otherwise, of a step that a machine
// that stalls does not cut short.
func (w *world) archive(t *testing.T, args string) step {
	t.Helper()
	if !strings.Contains(args, "p_time") {
		args = strings.TrimPrefix(args+", p_time => '1 minute'", ", ")
	}
	rows, err := w.conn.Query(t.Context(), "SELECT logs, chunks, bytes, more FROM tendril.archive_logs("+args+")")
	if err != nil {
		t.Fatal(err)
	}
	s, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[step])
	if err != nil {
		t.Fatalf("archive_logs(%s): %v", args, err)
	}
	return s
}

// over is a provision that has run and ended, with rows in its log that nothing
// less than their bytes could be told by.
func (w *world) over(t *testing.T, agent *agent, ago string, rows, bytes int) uuid.UUID {
	t.Helper()
	w.deploy(t, w.operator, snapshot("w"+uuid.NewString()[:8]))
	claim, id := agent.mustClaim(t)
	if rows > 0 {
		mustExec(t, w.conn, `WITH first AS (SELECT tendril.take_seq($1, $2::int, $2::bigint * $3::int) AS seq)
			INSERT INTO public.provision_logs (provision_id, seq, org_id, stream_type, log_chunk, emitted_at, created_at)
			SELECT $1, first.seq + n - 1, $4, (ARRAY['STDOUT', 'STDERR', 'SYSTEM'])[1 + n % 3],
			  CASE n % 5 WHEN 0 THEN '' ELSE left(E'\x1b[1m' || 'ü€😀"{},\NULL' || E'\r\n' || repeat(md5(n::text), $3::int / 32 + 1), $3::int) END,
			  clock_timestamp() - n * interval '1.000001 seconds', clock_timestamp() - n * interval '0.999999 seconds'
			FROM first, generate_series(1, $2::int) n`, id, rows, bytes, w.org)
	}
	agent.mustReport(t, claim, "FAILED", `{"error_code": "plan_failed"}`)
	w.age(t, id, ago)
	return id
}

// kept is all that a log's rows are, in the table.
const kept = `SELECT count(*) || ' ' || coalesce(md5(string_agg(l::text, E'\x01' ORDER BY l.seq)), '') FROM public.provision_logs l WHERE l.provision_id = $1`

// readLog is what is read of a log, in pages.
func (w *world) readLog(t *testing.T, conn *pgx.Conn, id uuid.UUID, after int64, limit, bytes int) (rows []string, pages int) {
	t.Helper()
	for {
		found, err := conn.Query(t.Context(), "SELECT seq, seq || ' ' || stream_type || ' ' || md5(log_chunk) || ' ' || emitted_at FROM tendril.log_page($1, $2, $3, $4)", id, after, limit, bytes)
		if err != nil {
			t.Fatal(err)
		}
		before := len(rows)
		var row string
		if _, err := pgx.ForEachRow(found, []any{&after, &row}, func() error {
			rows = append(rows, row)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if len(rows) == before {
			return rows, pages
		}
		if len(rows)-before > limit {
			t.Fatalf("a page of %d rows, want %d at most", len(rows)-before, limit)
		}
		pages++
	}
}

// Nothing tells an archived log from another, wherever and in whatever pages it is
// read, and it can be put back as it was.
func TestAnArchivedLogIsTheSame(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	small, large, many := w.over(t, agent, "8 days", 50, 100), w.over(t, agent, "8 days", 200, 60_000), w.over(t, agent, "8 days", 33_000, 20)
	parts := map[uuid.UUID]int{small: 1, large: 3, many: 3}
	before, pages := map[uuid.UUID]string{}, map[uuid.UUID][]string{}
	for id := range parts {
		before[id] = one[string](t, w.conn, kept, id)
		pages[id], _ = w.readLog(t, w.conn, id, 0, 1000, 1<<20)
	}
	for s := w.archive(t, ""); s.More; s = w.archive(t, "") {
	}
	for id, want := range parts {
		if got := one[int](t, w.conn, "SELECT count(*) FROM public.provision_log_archives WHERE provision_id = $1", id); got != want {
			t.Errorf("a log of %d rows is in %d parts, want %d", len(pages[id]), got, want)
		}
		if got := one[int](t, w.conn, "SELECT count(*) FROM public.provision_logs WHERE provision_id = $1", id); got != 0 {
			t.Errorf("rows that are left = %d, want none", got)
		}
		got, _ := w.readLog(t, w.conn, id, 0, 1000, 1<<20)
		if !slices.Equal(got, pages[id]) {
			t.Errorf("the archived log of %d rows reads otherwise than before (%d rows)", len(pages[id]), len(got))
		}
	}
	for _, after := range []int64{0, 1, 6, 7, 8, 25, 49, 50, 51} {
		for _, size := range [][2]int{{1, 1 << 20}, {7, 1 << 20}, {1000, 1}, {1000, 250}} {
			if got, _ := w.readLog(t, w.conn, small, after, size[0], size[1]); !slices.Equal(got, pages[small][min(int(after), 50):]) {
				t.Fatalf("rows after %d in pages of %v = %d, want those of before", after, size, len(got))
			}
		}
	}
	// At the joints of the parts of a long one.
	for _, joint := range []int64{16383, 16384, 16385, 32767, 32768, 32769, 32999, 33000} {
		if got, _ := w.readLog(t, w.conn, many, joint, 1000, 1<<20); !slices.Equal(got, pages[many][joint:]) {
			t.Errorf("rows after %d = %d, want those of before", joint, len(got))
		}
	}
	if got := one[bool](t, w.conn, "SELECT max(bytes) <= 4194304 AND max(last_seq - first_seq) < 16384 FROM public.provision_log_archives"); !got {
		t.Error("a part is larger than 4 MiB or 16384 rows")
	}
	if got := one[bool](t, w.conn, "SELECT sum(pg_column_size(log_chunks)) < sum(bytes) / 4 FROM public.provision_log_archives WHERE provision_id = $1", large); !got {
		t.Error("what compresses well is not compressed")
	}
	for id := range parts {
		mustExec(t, w.conn, "SELECT tendril.restore_log($1)", id)
		if got := one[string](t, w.conn, kept, id); got != before[id] {
			t.Errorf("a log that was put back = %s, want %s", got, before[id])
		}
	}
	if s := w.archive(t, ""); s.Logs == 0 {
		t.Errorf("archive_logs() after they were put back = %+v, want them again", s)
	}
}

// A step does a little, and says that there is more.
func TestAStepIsBounded(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.over(t, agent, "9 days", 33_000, 20)
	for range 5 {
		w.over(t, agent, "8 days", 300, 60_000)
	}
	if s := w.archive(t, "p_rows => 100"); s.Chunks != 16384 || s.Logs != 0 || !s.More {
		t.Errorf("a step of 100 rows = %+v, want one part", s)
	}
	if s := w.archive(t, "p_time => '0'"); s.Chunks != 0 || !s.More {
		t.Errorf("a step without time = %+v, want none", s)
	}
	if s := w.archive(t, "p_rows => 16385"); s.Chunks != 33_000-16384 || s.Logs != 1 || !s.More {
		t.Errorf("a step of 16385 rows = %+v, want the two parts that are left", s)
	}
	for i := 0; ; i++ {
		s := w.archive(t, "")
		if s.Bytes > 36<<20 {
			t.Errorf("a step of %d bytes, want 32 MiB and a part at most", s.Bytes)
		}
		if !s.More {
			if i < 2 {
				t.Errorf("80 MiB took %d steps, want some", i+1)
			}
			break
		}
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.provision_logs"); got != 0 {
		t.Errorf("rows that are left = %d, want none", got)
	}
	if s := w.archive(t, ""); s != (step{}) {
		t.Errorf("archive_logs() when all is done = %+v, want nothing", s)
	}
}

// A line that comes after all goes behind what was archived, and joins it.
func TestLinesAfterArchiving(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	id := w.over(t, agent, "8 days", 10, 10)
	w.archive(t, "")
	claim := one[uuid.UUID](t, w.conn, "SELECT id FROM tendril.claims WHERE provision_id = $1", id)
	_, err := agent.lines(t, claim, 1, "too late\n")
	wantRefusal(t, err, "PT409", "claim_lost")
	mustExec(t, w.conn, "UPDATE tendril.settings SET late_log = '30 days' WHERE only_row")
	if next, err := agent.lines(t, claim, 1, "late\n", "later\n"); err != nil || next != 3 {
		t.Errorf("late lines = %d, %v, want 3", next, err)
	}
	mustExec(t, w.conn, "SELECT tendril.system_line($1, 'last')", id)
	want := one[string](t, w.conn, "SELECT string_agg(seq || log_chunk, '') FROM public.provision_logs WHERE provision_id = $1", id)
	if want != "11late\n12later\n13last\n" {
		t.Errorf("what came late = %q, want it numbered on", want)
	}
	read := func() []string { rows, _ := w.readLog(t, w.conn, id, 0, 1000, 1<<20); return rows }
	before := read()
	mustExec(t, w.conn, "UPDATE tendril.settings SET late_log = '1 day' WHERE only_row")
	if s := w.archive(t, ""); s.Chunks != 3 || s.Logs != 1 {
		t.Errorf("archive_logs() = %+v, want the three late rows", s)
	}
	if got := read(); !slices.Equal(got, before) || len(got) != 13 {
		t.Errorf("%d rows before, %d after, want the same 13", len(before), len(got))
	}
	// Settled once more, long after: it is looked at again.
	mustExec(t, w.conn, "UPDATE public.provisions SET finished_at = clock_timestamp() WHERE id = $1", id)
	if got := one[bool](t, w.conn, "SELECT ended_at > now() - interval '1 hour' FROM tendril.log_ends WHERE provision_id = $1", id); !got {
		t.Error("the newer end is not noted")
	}
}

// Nor is one lost whose provision had ended without any.
func TestTheFirstLineAfterTheEnd(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	id := w.over(t, w.newAgent(t, "one"), "8 days", 0, 0)
	if s := w.archive(t, ""); s.Logs != 1 || s.Chunks != 0 {
		t.Errorf("archive_logs() = %+v, want one log without a row", s)
	}
	mustExec(t, w.conn, "SELECT tendril.system_line($1, 'first')", id)
	mustExec(t, w.conn, "UPDATE tendril.settings SET log_delete_after = '7 days' WHERE only_row")
	if got := one[int](t, w.conn, "SELECT tendril.delete_logs()"); got != 0 {
		t.Errorf("deleted = %d, want none: it is not archived", got)
	}
	if s := w.archive(t, ""); s.Logs != 1 || s.Chunks != 1 {
		t.Errorf("archive_logs() later = %+v, want its line", s)
	}
}

// Rows that somebody has deleted by hand are a gap, before and after.
func TestALogWithGapsIsArchivedAsItIs(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	id := w.over(t, w.newAgent(t, "one"), "8 days", 20, 10)
	mustExec(t, w.conn, "DELETE FROM public.provision_logs WHERE provision_id = $1 AND (seq < 4 OR seq IN (9, 11, 12))", id)
	before := one[string](t, w.conn, kept, id)
	rows, _ := w.readLog(t, w.conn, id, 0, 5, 1<<20)
	w.archive(t, "")
	if got, _ := w.readLog(t, w.conn, id, 0, 5, 1<<20); !slices.Equal(got, rows) || len(got) != 14 {
		t.Errorf("%d rows after, want the 14 of before", len(got))
	}
	mustExec(t, w.conn, "SELECT tendril.restore_log($1)", id)
	if got := one[string](t, w.conn, kept, id); got != before {
		t.Errorf("put back = %s, want %s", got, before)
	}
}

// What was there before the migration is found by and by.
func TestLogsFromBeforeAreFound(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if err := olddb.At("26")(t.Context(), db.URL); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, db.Conn(t))
	agent := w.newAgent(t, "one")
	old, young := w.over(t, agent, "8 days", 10, 10), w.over(t, agent, "1 hour", 10, 10)
	running := w.deploy(t, w.operator, snapshot("running"))
	claim, _ := agent.mustClaim(t)
	if _, err := agent.lines(t, claim, 1, "a line\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := tendrilsql.Migrate(t.Context(), db.URL); err != nil {
		t.Fatal(err)
	}
	if s := w.archive(t, ""); s.Logs != 1 || s.Chunks != 10 || !s.More {
		t.Errorf("archive_logs() = %+v, want the old log, and more to look at", s)
	}
	if s := w.archive(t, ""); s.More {
		t.Errorf("archive_logs() = %+v, want all looked at", s)
	}
	agent.mustReport(t, claim, "SUCCESS", "{}")
	for _, id := range []uuid.UUID{young, running} {
		w.age(t, id, "8 days")
	}
	if s := w.archive(t, ""); s.Logs != 2 {
		t.Errorf("archive_logs() later = %+v, want the other two", s)
	}
	if rows, _ := w.readLog(t, w.conn, old, 0, 100, 1<<20); len(rows) != 10 {
		t.Errorf("the old log has %d rows, want its 10", len(rows))
	}
}
