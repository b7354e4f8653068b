package sql_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

func TestMain(m *testing.M) {
	setModelSize()
	pgtest.Main(m)
}

// migrated fills a test's database with the contract, and with a pulse of its own:
// see queuetest.Migrated.
var migrated = pgtest.All(pgtest.WithStart("UPDATE tendril.pulse SET stamped_at = clock_timestamp()"), pgtest.WithSetup("contract", func(ctx context.Context, url string) error {
	_, err := tendrilsql.Migrate(ctx, url)
	return err
}))

func TestMigrateTwiceIsHarmless(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	first, err := tendrilsql.Migrate(t.Context(), db.URL)
	if err != nil || first == 0 {
		t.Fatalf("Migrate(empty) = %d, %v, want some migrations run", first, err)
	}
	again, err := tendrilsql.Migrate(t.Context(), db.URL)
	if err != nil || again != 0 {
		t.Fatalf("Migrate(again) = %d, %v, want 0, nil", again, err)
	}
}

func TestMigrateConcurrently(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var wg sync.WaitGroup
	errs := make([]error, 4)
	counts := make([]int, 4)
	for i := range errs {
		wg.Go(func() { counts[i], errs[i] = tendrilsql.Migrate(t.Context(), db.URL) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("four Migrate at once: %v", err)
	}
	worked := 0
	for _, n := range counts {
		if n > 0 {
			worked++
		}
	}
	if worked != 1 {
		t.Errorf("migrations run by each = %v, want all by one", counts)
	}
}

func TestMigrateRefusesNewerDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrated)
	conn := db.Conn(t)
	mustExec(t, conn, "INSERT INTO tendril.schema_migrations (version_id, is_applied) VALUES (9999, true)")
	_, err := tendrilsql.Migrate(t.Context(), db.URL)
	tooNew, ok := errors.AsType[*tendrilsql.TooNewError](err)
	if !ok || tooNew.Database != 9999 {
		t.Fatalf("Migrate(newer database) = %v, want TooNewError for 9999", err)
	}
	if !strings.Contains(err.Error(), "9999") || !strings.Contains(err.Error(), "trellis") {
		t.Errorf("error = %q, want it to name the version and what to do", err)
	}
}
