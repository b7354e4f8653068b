package sql

import (
	"context"
	stdsql "database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// lockWait is how long one that migrates waits for another.
const lockWait = 5 * time.Minute

// migrationLock lets one migrate at a time. It locks the version table, which only
// the owner of the schema can: an advisory lock, as goose has it, can be taken by
// everybody who may connect, agents included. The lock allows reads and writes and
// is held by a transaction of its own, for goose commits after each migration.
type migrationLock struct {
	db   *stdsql.DB
	wait time.Duration
	tx   *stdsql.Tx
}

// SessionLock implements goose's lock.SessionLocker.
func (l *migrationLock) SessionLock(ctx context.Context, _ *stdsql.Conn) error {
	made, err := makeVersionTable()
	if err != nil {
		return err
	}
	if _, err := l.db.ExecContext(ctx, "DO $tendril$ BEGIN\n"+made+"END $tendril$"); err != nil {
		return fmt.Errorf("make the table of migrations: %w", withRole(err))
	}
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("lock the table of migrations: %w", err)
	}
	for _, statement := range []string{
		"SET LOCAL idle_in_transaction_session_timeout = 0",
		fmt.Sprintf("SET LOCAL lock_timeout = %d", l.wait.Milliseconds()),
		lockVersionTable,
	} {
		if _, err = tx.ExecContext(ctx, statement); err != nil {
			break
		}
	}
	if err == nil {
		l.tx = tx
		return nil
	}
	_ = tx.Rollback()
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "55P03" {
		return fmt.Errorf("lock the table of migrations: %w", withRole(err))
	}
	return fmt.Errorf("another session has been migrating this database for %s: %s. Wait for it, or end it by SELECT pg_terminate_backend(…), then migrate again",
		l.wait, l.holders(ctx))
}

// holders names the sessions that have the lock.
func (l *migrationLock) holders(ctx context.Context) string {
	var names stdsql.NullString
	if err := l.db.QueryRowContext(ctx, `
		SELECT string_agg(format('process %s of role %s (%s), in a transaction since %s', a.pid, a.usename, coalesce(nullif(a.application_name, ''), 'no application name'),
		  coalesce(to_char(a.xact_start, 'YYYY-MM-DD HH24:MI:SS TZ'), 'a time that this role may not see')), '; ')
		FROM pg_catalog.pg_locks h JOIN pg_catalog.pg_stat_activity a ON a.pid = h.pid
		WHERE h.granted AND h.mode IN ('ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
		  AND h.relation = '`+versionTable+`'::pg_catalog.regclass AND h.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())`).Scan(&names); err != nil || !names.Valid {
		return "it has just ended, or cannot be named"
	}
	return names.String
}

// SessionUnlock implements goose's lock.SessionLocker.
func (l *migrationLock) SessionUnlock(context.Context, *stdsql.Conn) error {
	if err := l.tx.Rollback(); err != nil {
		return fmt.Errorf("unlock the table of migrations: %w", err)
	}
	return nil
}

const lockVersionTable = "LOCK TABLE " + versionTable + " IN SHARE UPDATE EXCLUSIVE MODE"

// makeVersionTable is a PL/pgSQL block that makes the schema and the version table,
// as goose does. Of several at once one makes them, and the others find them made.
func makeVersionTable() (string, error) {
	table, err := createVersionTable()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(`  BEGIN
    IF to_regclass('%[1]s') IS NULL THEN
      CREATE SCHEMA IF NOT EXISTS tendril;
      %[2]s;
      INSERT INTO %[1]s (version_id, is_applied) VALUES (0, true);
    END IF;
  EXCEPTION
    WHEN unique_violation OR duplicate_table OR duplicate_schema THEN NULL;
  END;
`, versionTable, table), nil
}
