package sql

import (
	"context"
	stdsql "database/sql"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // the database/sql driver that goose needs
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
)

// versionTable is where goose notes what has run.
const versionTable = "tendril.schema_migrations"

// minServer is the oldest PostgreSQL the migrations are written for, as
// server_version_num.
const minServer = 150000

// TooNewError says that a database has migrations this program does not know.
type TooNewError struct{ Database, Program int64 }

func (e *TooNewError) Error() string {
	return fmt.Sprintf("the database is at migration %d, this program knows only up to %d: use a trellis at least as new as the one that migrated it last", e.Database, e.Program)
}

// Migrate brings the database at the URL up to this program's migrations and
// functions, and returns how many migrations it ran. Two that migrate
// one database at once wait for each other. A database that is newer than this
// program is left as it is: *TooNewError.
func Migrate(ctx context.Context, databaseURL string) (int, error) {
	db, err := stdsql.Open("pgx", databaseURL)
	if err != nil {
		return 0, fmt.Errorf("open the database: %w", err)
	}
	defer db.Close() //nolint:errcheck // nothing was written that Close could lose
	if err := refusePooler(ctx, db); err != nil {
		return 0, err
	}
	if err := prepare(ctx, db); err != nil {
		return 0, err
	}
	provider, err := newProvider(db)
	if err != nil {
		return 0, err
	}
	current, target, err := provider.GetVersions(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the database's migration version: %w", withRole(err))
	}
	if current > target {
		return 0, &TooNewError{Database: current, Program: target}
	}
	results, err := provider.Up(ctx)
	if err != nil {
		return len(results), fmt.Errorf("migrate from version %d to %d: %w", current, target, withRole(err))
	}
	return len(results), applyFunctionFiles(ctx, db)
}

func applyFunctionFiles(ctx context.Context, db *stdsql.DB) error {
	files, err := readFunctions(functions)
	if err != nil {
		return err
	}
	var current bool
	if err := db.QueryRowContext(ctx, functionsCurrent(files)).Scan(&current); err != nil {
		return fmt.Errorf("read which functions the database has: %w", withRole(err))
	}
	if current {
		return nil
	}
	if _, err := db.ExecContext(ctx, "DO $tendril$\n"+functionsBlock(files)+"$tendril$"); err != nil {
		return fmt.Errorf("apply the functions of sql/functions: %w", withRole(err))
	}
	return nil
}

func newProvider(db *stdsql.DB) (*goose.Provider, error) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, fmt.Errorf("open the embedded migrations: %w", err)
	}
	store, err := database.NewStore(database.DialectPostgres, versionTable)
	if err != nil {
		return nil, fmt.Errorf("set up the migration store: %w", err)
	}
	provider, err := goose.NewProvider("", db, files, goose.WithStore(store), goose.WithSessionLocker(&migrationLock{db: db, wait: lockWait}))
	if err != nil {
		return nil, fmt.Errorf("read the embedded migrations: %w", err)
	}
	return provider, nil
}

// prepare checks the server and makes the schema that the version table lives
// in, which goose needs before the first migration.
func prepare(ctx context.Context, db *stdsql.DB) error {
	var version int
	var made bool
	err := db.QueryRowContext(ctx, "SELECT current_setting('server_version_num')::int, to_regnamespace('tendril') IS NOT NULL").Scan(&version, &made)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	if version < minServer {
		return fmt.Errorf("this PostgreSQL is version %d; %d or newer is needed", version/10000, minServer/10000)
	}
	if made { // by somebody who may have had a right to do that which we need not have
		return nil
	}
	_, err = db.ExecContext(ctx, "CREATE SCHEMA IF NOT EXISTS tendril")
	// IF NOT EXISTS does not help against another session doing the same now.
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && (pg.Code == "23505" || pg.Code == "42P06") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create schema tendril: %w", withRole(err))
	}
	return nil
}

// withRole adds what role it takes, where the server only says that this one
// may not.
func withRole(err error) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42501" {
		return err
	}
	return fmt.Errorf("%w; the first migration needs a role with CREATEROLE and CREATE on the database, later ones the role that ran the first", err)
}
