package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/pgurl"
)

const (
	// statementLimit bounds each statement, as a web request would be bounded.
	statementLimit = 10 * time.Second
	// callLimit bounds a whole request, so that a database that has gone
	// silent (a cut network) is noticed.
	callLimit = 15 * time.Second
	// connectLimit bounds a connection attempt when the URL does not say.
	connectLimit = 5 * time.Second
)

// Database is a pool of connections that many people's requests share. It is
// safe for concurrent use.
type Database struct {
	pool *pgxpool.Pool
	now  pgurl.Source
}

// Connect makes a pool of at most conns connections as the contract's owner. The
// database must have the contract: a *RefusedError says to migrate when it has
// not. An *UnreachableError when it cannot be reached.
func Connect(ctx context.Context, url string, conns int) (*Database, error) {
	return ConnectAnew(ctx, url, nil, conns)
}

// ConnectAnew is Connect for a URL that may change: now is asked for it again
// before each connection; nil: it stays.
func ConnectAnew(ctx context.Context, url string, now pgurl.Source, conns int) (*Database, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		// pgx redacts the password in this error.
		return nil, fmt.Errorf("database URL: %w", err)
	}
	config.BeforeConnect = pgurl.Renew(now)
	config.MaxConns = int32(conns)
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectLimit
	}
	// Without named statements: a pooler in transaction mode may stand between.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	config.ConnConfig.RuntimeParams["application_name"] = "trellis"
	// A pooler may lend these connections one that somebody else has left
	// listening. They would keep what arrives for ever.
	config.ConnConfig.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, translate("open the database", err)
	}
	d := &Database{pool: pool, now: now}
	// Any object of the contract will do, and anybody.
	if err := d.As(uuid.Nil).as(ctx, "reach the database", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT FROM public.cluster_overview LIMIT 0")
		return err
	}); err != nil {
		pool.Close()
		return nil, err
	}
	return d, nil
}

// As answers the requests of one person. It costs nothing.
func (d *Database) As(user uuid.UUID) *Store { return &Store{pool: d.pool, user: user} }

// AsOwner runs do in one transaction as the contract's owner: for finding out who
// asks, which nobody can know before, and for what the control plane does by itself,
// never for what somebody asks. doing names the request in errors that are not the
// database's own words.
func (d *Database) AsOwner(ctx context.Context, doing string, do func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return translate(doing, pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error { return do(ctx, tx) }))
}

// Session makes a connection besides the pool's, for who keeps it to listen; the
// server knows it by the name. It is the caller's to close.
func (d *Database) Session(ctx context.Context, name string) (*pgx.Conn, error) {
	config := d.pool.Config().ConnConfig
	config.OnNotification = nil // this one is to keep them
	config.RuntimeParams["application_name"] = name
	return pgurl.Connect(ctx, config, d.now)
}

// Stat says how its connections are used.
func (d *Database) Stat() *pgxpool.Stat { return d.pool.Stat() }

// Close ends all connections.
func (d *Database) Close() { d.pool.Close() }

// Store answers one person's requests. It is safe for concurrent use, but for
// one of Within.
type Store struct {
	pool *pgxpool.Pool
	user uuid.UUID
	tx   pgx.Tx // of Within; nil: each call has one of its own
}

// as runs do in a transaction of the person's own. doing names the request in
// errors that are not the database's own words.
func (s *Store) as(ctx context.Context, doing string, do func(context.Context, pgx.Tx) error) error {
	if s.tx != nil {
		return translate(doing, do(ctx, s.tx))
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	claims := fmt.Sprintf(`{"sub": %q, "role": "authenticated"}`, s.user)
	if p, _ := person.From(ctx); p.Token { // what it may not do is for SQL to refuse
		claims = fmt.Sprintf(`{"sub": %q, "role": "authenticated", "credential": "api_token"}`, s.user)
	}
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT set_config('request.jwt.claims', $1, true), set_config('statement_timeout', $2, true),
			set_config('role', 'authenticated', true)`, claims, fmt.Sprintf("%dms", statementLimit.Milliseconds()))
		if err != nil {
			return err
		}
		return do(ctx, tx)
	})
	return translate(doing, err)
}

// rows runs a query as the person and reads each row into a T by column name.
func rows[T any](ctx context.Context, s *Store, doing, query string, args ...any) (found []T, err error) {
	err = s.as(ctx, doing, func(ctx context.Context, tx pgx.Tx) error {
		result, err := tx.Query(ctx, query, args...)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(result, pgx.RowToStructByName[T])
		return err
	})
	return found, err
}
