package sql

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Left is a statement that only another role may run.
type Left struct {
	RunAs     string `json:"run_as"` // a role's name, or "a superuser"
	Statement string `json:"statement"`
}

// UsePlatform has a database that is up to date use what its platform offers
// (Supabase's Realtime, pg_cron), and returns what is left for others to do.
func UsePlatform(ctx context.Context, databaseURL string) ([]Left, error) {
	conn, err := connect(ctx, databaseURL)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return usePlatform(ctx, conn)
}

func usePlatform(ctx context.Context, conn interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}) ([]Left, error) {
	rows, err := conn.Query(ctx, "SELECT run_as, statement FROM tendril.fit_platform()")
	if err != nil {
		return nil, fmt.Errorf("use what the database's platform offers: %w", withRole(err))
	}
	left, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Left])
	if err != nil {
		return nil, fmt.Errorf("use what the database's platform offers: %w", withRole(err))
	}
	return left, nil
}

// Publication is one that carries more of our tables than people may watch.
type Publication struct {
	Name   string `json:"name"`
	Covers string `json:"covers"` // "all tables", or of which schemas
}

// BroadPublications lists those of a database that is up to date.
func BroadPublications(ctx context.Context, databaseURL string) ([]Publication, error) {
	conn, err := connect(ctx, databaseURL)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	rows, err := conn.Query(ctx, "SELECT publication, covers FROM tendril.broad_publications()")
	if err != nil {
		return nil, fmt.Errorf("list the database's publications: %w", withRole(err))
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Publication])
	if err != nil {
		return nil, fmt.Errorf("list the database's publications: %w", withRole(err))
	}
	return found, nil
}

// Pending is what a database still needs.
type Pending struct {
	Version int64  // the migration that it is at; 0: none has been run
	Script  string // of Script; "" when it is up to date
	Left    []Left // as of UsePlatform, when it is up to date
}

// Inspect says what a database still needs, and changes nothing in it.
func Inspect(ctx context.Context, databaseURL string) (Pending, error) {
	var p Pending
	conn, err := connect(ctx, databaseURL)
	if err != nil {
		return p, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if p.Version, err = version(ctx, conn); err != nil {
		return p, err
	}
	if p.Script, err = missing(ctx, conn, p.Version); err != nil || p.Script != "" {
		return p, err
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		return p, fmt.Errorf("ask what the database's platform offers: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // it was only to see what is left
	p.Left, err = usePlatform(ctx, tx)
	return p, err
}

func connect(ctx context.Context, databaseURL string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("read the database's URL: %w", err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // a pooler may keep prepared statements from us
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("reach the database: %w", err)
	}
	return conn, nil
}
