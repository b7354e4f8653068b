package sql_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// impatient opens a connection that looks for a deadlock long before it gives up
// waiting for a lock, which would hide it.
func impatient(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["deadlock_timeout"] = "50ms"
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// deadlocks counts those of the connection's database. A backend tells of its
// own at its end at the latest, so the others' ends are waited for.
func deadlocks(t *testing.T, conn *pgx.Conn) int {
	t.Helper()
	awaitAlone(t, conn, 1)
	return one[int](t, conn, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
}

// awaitAlone waits until no more than so many connections to its database are left,
// the connection's own included.
func awaitAlone(t *testing.T, conn *pgx.Conn, left int) {
	t.Helper()
	const all = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
	for end := patience.Begin(time.Minute); one[int](t, conn, all) > left; {
		if end.Over() {
			t.Fatalf("there are still %d connections after a minute, want %d", one[int](t, conn, all), left)
		}
		mustExec(t, conn, "SELECT pg_sleep(0.01)")
	}
}

// countCalls has a function of the schema tendril counted, also where what it
// did is rolled back.
func countCalls(t *testing.T, conn *pgx.Conn, signature, returns string) {
	t.Helper()
	name, arguments, _ := strings.Cut(signature, "(")
	passed := strings.Join([]string{"$1", "$2", "$3"}[:strings.Count(arguments, ",")+1], ", ")
	mustExec(t, conn, "CREATE SEQUENCE tendril.calls_of_"+name)
	mustExec(t, conn, "GRANT USAGE ON SEQUENCE tendril.calls_of_"+name+" TO PUBLIC")
	mustExec(t, conn, "ALTER FUNCTION tendril."+signature+" RENAME TO counted_"+name)
	mustExec(t, conn, "CREATE FUNCTION tendril."+signature+" RETURNS "+returns+" LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('tendril.calls_of_"+name+"'); "+
		map[bool]string{true: "PERFORM", false: "RETURN"}[returns == "void"]+" tendril.counted_"+name+"("+passed+"); END $$")
}

func calledTimes(t *testing.T, conn *pgx.Conn, function string) int {
	t.Helper()
	return one[int](t, conn, "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM tendril.calls_of_"+function)
}

// What finds deadlocks finds one that nobody was told of.
func TestDeadlocksAreCounted(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrated)
	own := db.Conn(t)
	mustExec(t, own, "CREATE TABLE public.pair (id int PRIMARY KEY); INSERT INTO public.pair VALUES (1), (2)")
	first, second := impatient(t, db.URL), impatient(t, db.URL)
	mustExec(t, first, "BEGIN; SELECT FROM public.pair WHERE id = 1 FOR UPDATE")
	mustExec(t, second, "BEGIN; SELECT FROM public.pair WHERE id = 2 FOR UPDATE")
	const quietly = `DO $$ BEGIN PERFORM FROM public.pair WHERE id = %d FOR UPDATE; EXCEPTION WHEN OTHERS THEN RAISE WARNING '%', SQLERRM; END $$; ROLLBACK`
	done := make(chan error, 1)
	go func() {
		_, err := first.Exec(t.Context(), strings.ReplaceAll(quietly, "%d", "2"))
		done <- err
	}()
	mustExec(t, second, strings.ReplaceAll(quietly, "%d", "1"))
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, conn := range []*pgx.Conn{first, second} {
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := deadlocks(t, own); n != 1 {
		t.Errorf("deadlocks = %d, want 1", n)
	}
}
