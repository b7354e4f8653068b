package sql_test

import (
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/pgtest"
	"github.com/tendril-run/tendril/internal/pgtest/pgbouncer"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

// Behind a pooler in transaction mode the lock of the migrations would be
// somebody else's the next moment; one in session mode will do.
func TestMigrateThroughAPooler(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settings map[string]string
		refused  bool
	}{
		"transactions": {map[string]string{"default_pool_size": "5"}, true},
		"one for all":  {map[string]string{"default_pool_size": "1"}, true},
		"sessions":     {map[string]string{"pool_mode": "session"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			url := pgbouncer.Start(t, db.URL, c.settings).URL(t, db.URL)
			for range 2 {
				_, err := tendrilsql.Migrate(t.Context(), url)
				if refused := err != nil; refused != c.refused || refused && !strings.Contains(err.Error(), "5432") {
					t.Errorf("Migrate() = %v, want it refused %t, saying where to", err, c.refused)
				}
			}
			var made bool
			if err := db.Conn(t).QueryRow(t.Context(), "SELECT to_regnamespace('tendril') IS NOT NULL").Scan(&made); err != nil || made == c.refused {
				t.Errorf("the schema is there: %t, %v, want %t", made, err, !c.refused)
			}
		})
	}
}
