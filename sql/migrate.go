package sql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// lockWait is how long Migrate waits for another one, or for any lock.
const lockWait = 5 * time.Minute

// TooNewError says that a database has migrations this program does not know.
type TooNewError struct{ Database, Program int64 }

func (e *TooNewError) Error() string {
	return fmt.Sprintf("the database is at migration %d, this program knows only up to %d: use a trellis at least as new as the one that migrated it last", e.Database, e.Program)
}

// Migrate brings the database at the URL up to this program's migrations and
// functions, all in one transaction, and returns how many migrations it ran. Two
// that migrate one database at once wait for each other. A database that is newer
// than this program is left as it is: *TooNewError.
func Migrate(ctx context.Context, databaseURL string) (int, error) {
	return migrate(ctx, databaseURL, lockWait)
}

func migrate(ctx context.Context, databaseURL string, wait time.Duration) (ran int, err error) {
	conn, err := connect(ctx, databaseURL)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	from, err := version(ctx, conn)
	if err != nil {
		return 0, err
	}
	text, err := missing(ctx, conn, from)
	if err != nil || text == "" {
		return 0, err
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		// The simple protocol: the text is one statement without parameters, and long.
		set := fmt.Sprintf("SET LOCAL lock_timeout = %d; SET LOCAL idle_in_transaction_session_timeout = 0", wait.Milliseconds())
		if _, err := tx.Exec(ctx, set, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, text, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		return tx.QueryRow(ctx, "SELECT current_setting('tendril.migrations_run')::int").Scan(&ran)
	})
	if err == nil {
		return ran, nil
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "55P03" {
		if names := lockHolders(ctx, conn); names != "" {
			return 0, fmt.Errorf("another session has been migrating this database for %s: %s. Wait for it, or end it by SELECT pg_terminate_backend(…), then migrate again", wait, names)
		}
	}
	return 0, fmt.Errorf("migrate the database from version %d: %w", from, withRole(err))
}

// version is the newest migration of a database; 0: it has none.
func version(ctx context.Context, conn *pgx.Conn) (v int64, err error) {
	var begun bool
	err = conn.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", versionTable).Scan(&begun)
	if err == nil && begun {
		err = conn.QueryRow(ctx, "SELECT coalesce(max(version_id), 0) FROM "+versionTable+" WHERE is_applied").Scan(&v)
	}
	if err != nil {
		return 0, fmt.Errorf("read the database's migration version: %w", withRole(err))
	}
	return v, nil
}

// missing is the script for what a database at this version still needs, "" when it
// needs nothing.
func missing(ctx context.Context, conn *pgx.Conn, from int64) (string, error) {
	text, err := Script(from)
	if err != nil || text != "" {
		return text, err
	}
	files, err := readFunctions(functions)
	if err != nil {
		return "", err
	}
	var current bool
	if err := conn.QueryRow(ctx, functionsCurrent(files)).Scan(&current); err != nil {
		return "", fmt.Errorf("read which functions the database has: %w", withRole(err))
	}
	if current {
		return "", nil
	}
	return script(from, true)
}

// lockHolders names the other sessions that have the lock of the version table, ""
// when there is none.
func lockHolders(ctx context.Context, conn *pgx.Conn) string {
	var names *string
	if err := conn.QueryRow(ctx, `
		SELECT string_agg(format('process %s of role %s (%s), in a transaction since %s', a.pid, a.usename, coalesce(nullif(a.application_name, ''), 'no application name'),
		  coalesce(to_char(a.xact_start, 'YYYY-MM-DD HH24:MI:SS TZ'), 'a time that this role may not see')), '; ')
		FROM pg_catalog.pg_locks h JOIN pg_catalog.pg_stat_activity a ON a.pid = h.pid
		WHERE h.granted AND h.mode IN ('ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
		  AND h.pid <> pg_backend_pid()
		  AND h.relation = to_regclass('`+versionTable+`') AND h.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())`).Scan(&names); err != nil || names == nil {
		return ""
	}
	return *names
}

// withRole adds what role it takes, where the server only says that this one
// may not.
func withRole(err error) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42501" {
		return err
	}
	return fmt.Errorf("%w; the first migration needs a role with CREATEROLE and CREATE on the database, later ones the role that ran the first", err)
}
