package pgtest_test

import (
	"context"
	"crypto/rand"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// runs counts how often the setup of TestTemplateIsMadeOnce ran.
var runs atomic.Int32

func countingSetup(ctx context.Context, url string) error {
	runs.Add(1)
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "CREATE TABLE fruit (name text); INSERT INTO fruit VALUES ('fig')")
	return errors.Join(err, conn.Close(ctx))
}

func TestTemplateIsMadeOnce(t *testing.T) {
	t.Parallel()
	name := rand.Text() // no other process has made it
	t.Run("group", func(t *testing.T) {
		for range 8 {
			t.Run("database", func(t *testing.T) {
				t.Parallel()
				conn := pgtest.New(t, pgtest.WithSetup(name, countingSetup)).Conn(t)
				// Were the databases one, the later ones would count more rows.
				var n int
				err := conn.QueryRow(t.Context(), "WITH x AS (INSERT INTO fruit VALUES ('kiwi')) SELECT count(*) FROM fruit").Scan(&n)
				if err != nil || n != 1 {
					t.Errorf("rows before the insert = %d, %v, want 1", n, err)
				}
				if _, err := conn.Exec(t.Context(), "INSERT INTO fruit VALUES ('lime')"); err != nil {
					t.Errorf("second insert: %v", err)
				}
			})
		}
	})
	if n := runs.Load(); n != 1 {
		t.Errorf("the setup ran %d times, want 1", n)
	}
}

func TestDatabaseIsDroppedAlthoughInUse(t *testing.T) {
	t.Parallel()
	outer := pgtest.New(t)
	conn := outer.Conn(t)
	var name string
	var left *pgx.Conn
	t.Run("inner", func(t *testing.T) {
		db := pgtest.New(t)
		name = db.Name
		var err error
		if left, err = pgx.Connect(context.WithoutCancel(t.Context()), db.URL); err != nil {
			t.Fatal(err)
		}
	})
	defer func() { _ = left.Close(t.Context()) }()
	var exists bool
	if err := conn.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists); err != nil || exists {
		t.Errorf("database %s exists after its test = %v, %v, want false", name, exists, err)
	}
}

func TestOwnServerKeepsDataAndURL(t *testing.T) {
	t.Parallel()
	own := pgtest.OwnServer(t)
	url := own.URL
	run := func(statement string) error {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			return err
		}
		_, err = conn.Exec(t.Context(), statement)
		return errors.Join(err, conn.Close(t.Context()))
	}
	if err := run("CREATE TABLE kept ()"); err != nil {
		t.Fatal(err)
	}
	own.Stop(t)
	if err := run("SELECT FROM kept"); err == nil {
		t.Error("a stopped server answers")
	}
	own.Start(t)
	if own.URL != url {
		t.Errorf("URL after a restart = %s, want %s", own.URL, url)
	}
	if err := run("SELECT FROM kept"); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

func TestDurableServerKeepsCommitsAcrossACrash(t *testing.T) {
	t.Parallel()
	own := pgtest.OwnServer(t, pgtest.Durable())
	run := func(statement string) error {
		conn, err := pgx.Connect(t.Context(), own.URL)
		if err != nil {
			return err
		}
		_, err = conn.Exec(t.Context(), statement)
		return errors.Join(err, conn.Close(t.Context()))
	}
	if err := run("CREATE TABLE kept ()"); err != nil {
		t.Fatal(err)
	}
	own.Crash(t)
	if err := run("SELECT FROM kept"); err == nil {
		t.Error("a crashed server answers")
	}
	own.Start(t)
	if err := run("SELECT FROM kept"); err != nil {
		t.Errorf("after a crash: %v", err)
	}
}

func TestPoolIsClosedBeforeTheDatabaseIsDropped(t *testing.T) {
	t.Parallel()
	var n int
	if err := pgtest.New(t).Pool(t).QueryRow(t.Context(), "SELECT 1").Scan(&n); err != nil || n != 1 {
		t.Errorf("SELECT 1 = %d, %v, want 1", n, err)
	}
}

func TestOwnServerOfAnotherMajor(t *testing.T) {
	t.Parallel()
	own := pgtest.OwnServer(t, pgtest.WithPrograms(pgtest.Programs18(t)), pgtest.WithSetting("wal_level", "logical"))
	conn, err := pgx.Connect(t.Context(), own.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	var major, level string
	err = conn.QueryRow(t.Context(), "SELECT current_setting('server_version_num')::int / 10000 || '', current_setting('wal_level')").Scan(&major, &level)
	if err != nil || major != "18" || level != "logical" {
		t.Errorf("major, wal_level = %s, %s, %v, want 18, logical", major, level, err)
	}
}
