package sql_test

import (
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/pgtest/pgbouncer"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

// All of a migration is one transaction, so a pooler may lend the connection to others
// before and after.
func TestMigrateThroughAPooler(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]map[string]string{
		"transactions": {"default_pool_size": "5"},
		"one for all":  {"default_pool_size": "1"},
		"sessions":     {"pool_mode": "session"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			url := pgbouncer.Start(t, db.URL, settings).URL(t, db.URL)
			for _, want := range []bool{true, false} {
				if ran, err := tendrilsql.Migrate(t.Context(), url); err != nil || (ran > 0) != want {
					t.Errorf("Migrate() = %d, %v, want migrations run: %t", ran, err, want)
				}
			}
		})
	}
}
