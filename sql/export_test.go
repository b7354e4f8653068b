package sql

import (
	"context"
	stdsql "database/sql"
)

// MigrateTo runs the migrations up to a version and returns how many it ran.
func MigrateTo(ctx context.Context, databaseURL string, version int64) (int, error) {
	db, err := stdsql.Open("pgx", databaseURL)
	if err != nil {
		return 0, err
	}
	defer db.Close() //nolint:errcheck // a test's
	if err := prepare(ctx, db); err != nil {
		return 0, err
	}
	provider, err := newProvider(db)
	if err != nil {
		return 0, err
	}
	results, err := provider.UpTo(ctx, version)
	return len(results), err
}
