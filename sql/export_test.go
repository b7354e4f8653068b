package sql

import (
	"context"
	stdsql "database/sql"
	"strings"
	"testing"
)

// MigrationTexts is all of the migrations.
func MigrationTexts(t *testing.T) string {
	t.Helper()
	all, err := read(migrations)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, m := range all {
		b.WriteString(m.text)
	}
	return b.String()
}

// Versions lists the migrations there are, in their order.
func Versions(t *testing.T) (versions []int64) {
	t.Helper()
	all, err := read(migrations)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		versions = append(versions, m.version)
	}
	return versions
}

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
