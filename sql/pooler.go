package sql

import (
	"context"
	stdsql "database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// errPooled: the migrations' lock belongs to a session, and so do the statements
// that are prepared. Through such a pooler the lock would be left with whoever
// is lent the connection next.
var errPooled = errors.New("a pooler in transaction mode stands between, and migrations need a connection that keeps its session: " +
	"go past it, or through one in session mode (Supabase: port 5432 in place of 6543)")

// refusePooler returns errPooled where the server's connection that one of ours
// has had is lent to another of ours.
func refusePooler(ctx context.Context, db *stdsql.DB) error {
	const backend = "SELECT pg_backend_pid()"
	// Not prepared: somebody else may have prepared it there.
	ask := func(q interface {
		QueryRowContext(context.Context, string, ...any) *stdsql.Row
	}) (pid int, err error) {
		err = q.QueryRowContext(ctx, backend, pgx.QueryExecModeSimpleProtocol).Scan(&pid)
		return pid, err
	}
	one, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	defer one.Close() //nolint:errcheck // back to the pool
	first, err := ask(one)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	other, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	defer other.Rollback() //nolint:errcheck // it was only to ask
	second, err := ask(other)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	if first == second {
		return errPooled
	}
	return nil
}
