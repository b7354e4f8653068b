package sql_test

import (
	"bytes"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/olddb"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

// A database from before the baseline becomes what a new one is, object by object, and
// keeps every row. One has 10,000: runs in every status, leases that ran
// out, plans, states, archived logs and two organisations. With TENDRIL_TEST_FAULTS=all
// that is each release of which we have a database; else the oldest, the newest, the one
// with the rows, and another that is drawn.
func TestOldDatabaseBecomesAsNew(t *testing.T) {
	t.Parallel()
	is := objects(t, pgtest.New(t, migrated).URL)
	names := olddb.Names()
	switch {
	case testing.Short():
		names = names[:1] // which runs the most migrations
	case os.Getenv("TENDRIL_TEST_FAULTS") != "all":
		names = []string{names[0], olddb.Rows, names[len(names)-1], names[rand.N(len(names))]}
		slices.Sort(names)
		names = slices.Compact(names)
		t.Logf("drawn: %q", names)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			old := pgtest.New(t, pgtest.WithSetup(name, olddb.At(name)))
			conn := old.Conn(t)
			before, states := counts(t, conn), statuses(t, conn)
			if total := sum(before); name == olddb.Rows && total < 10_000 {
				t.Fatalf("the dump has %d rows, want 10,000 or more", total)
			}
			if _, err := tendrilsql.Migrate(t.Context(), old.URL); err != nil {
				t.Fatal(err)
			}
			after := counts(t, conn)
			for table, rows := range before {
				if now, there := after[table]; !there || now < rows {
					t.Errorf("%s has %d rows, want the %d of before", table, now, rows)
				}
			}
			if got := statuses(t, conn); !maps.Equal(got, states) {
				t.Errorf("statuses = %v, want %v", got, states)
			}
			was := objects(t, old.URL)
			for _, name := range slices.Sorted(maps.Keys(is)) {
				if was[name] != is[name] {
					t.Errorf("%s\nin the old database: %s\nin a new one: %s", name, was[name], is[name])
				}
			}
			for name := range was {
				if _, there := is[name]; !there {
					t.Errorf("%s is left of the old database", name)
				}
			}
		})
	}
}

// copied is a database with the schema of another: Postgres writes some expressions in
// another way after they were dumped and restored once.
func copied(t *testing.T, url string) string {
	t.Helper()
	db := pgtest.New(t)
	restore(t, db.URL, bytes.NewReader(schema(t, url)))
	return db.URL
}

func restore(t *testing.T, url string, text io.Reader) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), pgtest.Tool(t, "psql"), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--dbname", url)
	cmd.Stdin = text
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("restore a dump: %v\n%s", err, out)
	}
}

func schema(t *testing.T, url string) []byte {
	t.Helper()
	dump, err := exec.CommandContext(t.Context(), pgtest.Tool(t, "pg_dump"), "--schema-only", "--dbname", url).Output()
	if err != nil {
		t.Fatalf("pg_dump: %v", err)
	}
	return dump
}

// objects are the definitions that pg_dump prints of a database's schema, by their names.
func objects(t *testing.T, url string) map[string]string {
	t.Helper()
	dump := schema(t, copied(t, url))
	all := map[string]string{}
	heads := regexp.MustCompile(`(?m)^--\n-- (Name: .*)\n--\n`).FindAllSubmatchIndex(dump, -1)
	for i, head := range heads {
		end := len(dump)
		if i+1 < len(heads) {
			end = heads[i+1][0]
		}
		if bytes.Contains(dump[head[2]:head[3]], []byte("Schema: pg_catalog")) {
			continue // what depends on the server's logins, which other tests make
		}
		// A key that only this run of pg_dump has.
		text := regexp.MustCompile(`(?m)^\\(un)?restrict .*$`).ReplaceAll(dump[head[1]:end], nil)
		all[string(dump[head[2]:head[3]])] += strings.TrimSpace(string(text))
	}
	if len(all) < 500 {
		t.Fatalf("pg_dump printed %d objects, want hundreds", len(all))
	}
	return all
}

// counts are the rows of each table.
func counts(t *testing.T, conn *pgx.Conn) map[string]int {
	t.Helper()
	tables := one[[]string](t, conn, "SELECT array_agg(schemaname || '.' || tablename) FROM pg_tables WHERE schemaname IN ('public', 'tendril')")
	all := map[string]int{}
	for _, table := range tables {
		all[table] = one[int](t, conn, "SELECT count(*) FROM "+table)
	}
	return all
}

func statuses(t *testing.T, conn *pgx.Conn) map[string]int {
	t.Helper()
	if !one[bool](t, conn, "SELECT to_regclass('public.provisions') IS NOT NULL") {
		return nil
	}
	rows, err := conn.Query(t.Context(), "SELECT status || coalesce('/' || error_code, ''), count(*) FROM public.provisions GROUP BY 1")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	var status string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&status, &n}, func() error { all[status] = n; return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

func sum(counts map[string]int) (total int) {
	for _, n := range counts {
		total += n
	}
	return total
}
