package pgqueue_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// PostgreSQL's program limits: which code each is met with, and what that means. A value
// meets the first two; nothing that an agent sends meets the others.
func TestProgramLimits(t *testing.T) {
	t.Parallel()
	conn := pgtest.New(t).Conn(t)
	if _, err := conn.Exec(t.Context(), "CREATE TABLE keys (k text PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		statement, code string
		want            queue.Kind
	}{
		"an index row":  {"INSERT INTO keys SELECT string_agg(md5(n::text), '') FROM generate_series(1, 300) n", "54000", queue.ContentRefused},
		"nested JSON":   {"SELECT repeat('[', 1000000)::jsonb", "54001", queue.ContentRefused},
		"columns":       {"CREATE TABLE wide (" + many(1601, "c%d int") + ")", "54011", queue.Unavailable},
		"a target list": {"SELECT " + many(1665, "%d"), "54011", queue.Unavailable},
		"arguments":     {"SELECT pg_catalog.int4pl(" + many(101, "%d") + ")", "54023", queue.Unavailable},
	} {
		_, err := conn.Exec(t.Context(), tt.statement)
		refused, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || refused.Code != tt.code {
			t.Errorf("%s: PostgreSQL answers %v, want SQLSTATE %s", name, err, tt.code)
			continue
		}
		if got := queue.Answer("ask", refused.Code, refused.Message, "", "").Kind; got != tt.want {
			t.Errorf("%s (%s: %s) is of kind %d, want %d", name, refused.Code, refused.Message, got, tt.want)
		}
	}
}

// many is a list of so many items, with their numbers.
func many(n int, item string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(item, i)
	}
	return strings.Join(all, ", ")
}
