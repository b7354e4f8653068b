package sql

import (
	"context"
	stdsql "database/sql"
	"fmt"
)

// MigrateTo runs the migrations up to a version and returns how many it ran: for
// tests of what a database that is not migrated yet must serve. Who migrates for
// use calls Migrate.
func MigrateTo(ctx context.Context, databaseURL string, version int64) (int, error) {
	db, err := stdsql.Open("pgx", databaseURL)
	if err != nil {
		return 0, fmt.Errorf("open the database: %w", err)
	}
	defer db.Close() //nolint:errcheck // nothing was written that Close could lose
	if err := prepare(ctx, db); err != nil {
		return 0, err
	}
	provider, err := newProvider(db)
	if err != nil {
		return 0, err
	}
	results, err := provider.UpTo(ctx, version)
	if err != nil {
		return len(results), fmt.Errorf("migrate to version %d: %w", version, withRole(err))
	}
	return len(results), nil
}
