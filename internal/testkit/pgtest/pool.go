package pgtest

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Pool opens a pool as superuser that is closed when the test is over.
func (db *DB) Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), db.URL)
	if err != nil {
		t.Fatalf("pgtest: opening a pool: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}
