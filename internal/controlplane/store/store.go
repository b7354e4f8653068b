package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/pgurl"
	"github.com/tendril-run/tendril/internal/tracing"
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
	config.ConnConfig.Tracer = tracing.Queries{}
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

// OwnerDoes is AsOwner for one statement. It answers no columns.
func (d *Database) OwnerDoes(ctx context.Context, doing, query string, args ...any) error {
	return d.AsOwner(ctx, doing, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, query, args...)
		return err
	})
}

// OwnerAsks is AsOwner for one query that answers one row, read into the targets; the
// error is pgx.ErrNoRows where it answers none.
func (d *Database) OwnerAsks(ctx context.Context, doing, query string, args []any, into ...any) error {
	return d.AsOwner(ctx, doing, func(ctx context.Context, tx pgx.Tx) error { return tx.QueryRow(ctx, query, args...).Scan(into...) })
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
	claims, err := s.claims(ctx)
	if err != nil {
		return err
	}
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT set_config('request.jwt.claims', $1, true), set_config('statement_timeout', $2, true),
			set_config('role', 'authenticated', true)`, claims, fmt.Sprintf("%dms", statementLimit.Milliseconds()))
		if err != nil {
			return err
		}
		return do(ctx, tx)
	})
	return translate(doing, err)
}

// claims say who asks, and by what. What a token or a tool may not do is for SQL to refuse.
func (s *Store) claims(ctx context.Context) (string, error) {
	p, _ := person.From(ctx)
	claims := map[string]any{"sub": s.user, "role": "authenticated"}
	if p.Token {
		claims["credential"], claims["token"] = "api_token", p.TokenID
	}
	if p.Tool != "" {
		claims["tool"] = p.Tool
	}
	if traceparent := tracing.From(ctx); traceparent != "" {
		claims["traceparent"] = traceparent
	}
	text, err := json.Marshal(claims)
	return string(text), err
}

// do runs a statement as the person. It answers no columns.
func (s *Store) do(ctx context.Context, doing, query string, args ...any) error {
	return s.as(ctx, doing, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, query, args...)
		return err
	})
}

// one asks for the one value that a function answers, named answer.
func one[T any](ctx context.Context, s *Store, doing, query string, args ...any) (value T, err error) {
	type row struct {
		Answer T `db:"answer"`
	}
	answer, err := only[row](ctx, s, doing, query, args...)
	return answer.Answer, err
}

// only asks for exactly one row.
func only[T any](ctx context.Context, s *Store, doing, query string, args ...any) (row T, err error) {
	answers, err := rows[T](ctx, s, doing, query, args...)
	if err == nil && len(answers) != 1 {
		err = fmt.Errorf("%s: the database answered %d rows, not one", doing, len(answers))
	}
	return first(answers, err, nil)
}

// first returns the first of what was found, and none as the error where there is nothing.
func first[T any](found []T, err, none error) (one T, _ error) {
	if err != nil {
		return one, err
	}
	if len(found) == 0 {
		return one, none
	}
	return found[0], nil
}

// orNil is the first of what was found; nil where there is nothing.
func orNil[T any](found []T, err error) (*T, error) {
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// more is a page of at most limit of what was found when one more was asked for, and the
// key of its last where others follow.
func more[T, K any](found []T, limit int, key func(T) K) (page []T, next K) {
	if len(found) <= limit {
		return found, next
	}
	return found[:limit], key(found[limit-1])
}

// orNull is an id as a parameter: null for uuid.Nil.
func orNull(id uuid.UUID) uuid.NullUUID { return uuid.NullUUID{UUID: id, Valid: id != uuid.Nil} }

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

// Within runs do in one transaction: all that it asks of the Store that it is
// given comes to pass together, or, if it returns an error, not at all. That
// Store is for do alone.
func (s *Store) Within(ctx context.Context, doing string, do func(context.Context, *Store) error) error {
	var failed error
	err := s.as(ctx, doing, func(ctx context.Context, tx pgx.Tx) error {
		failed = do(ctx, &Store{pool: s.pool, user: s.user, tx: tx})
		return failed
	})
	if failed != nil {
		return failed // in the caller's words, or already in ours
	}
	return err
}

// Answered is what a request was answered that its sender had named by a key.
type Answered struct {
	Location string
	// Answer is nil where it held a secret, which is not kept.
	Answer json.RawMessage
	// Status is the HTTP status where the answer is a problem; 0: it is none.
	Status int
	// Settled is false while the answer may still become another one.
	Settled bool
}

// BeginRequest begins a request that the person names by a key, and whose SHA-256
// in hexadecimal is digest, in the transaction (Within) in which it is carried
// out. It returns what it was answered where it was carried out already, within a
// day, and nil where it is to be. A *RefusedError says so while it is being
// carried out, and when the key was another request's.
func (s *Store) BeginRequest(ctx context.Context, key, digest string) (*Answered, error) {
	begun, err := one[*json.RawMessage](ctx, s, "look for the request", "SELECT public.begin_request($1, $2) AS answer", key, digest)
	if err != nil || begun == nil {
		return nil, err
	}
	var kept struct {
		Location string          `json:"location"`
		Answer   json.RawMessage `json:"answer"`
		Status   int             `json:"status"`
		Settled  bool            `json:"settled"`
	}
	if err := json.Unmarshal(*begun, &kept); err != nil {
		return nil, err
	}
	if string(kept.Answer) == "null" {
		kept.Answer = nil
	}
	return &Answered{kept.Location, kept.Answer, kept.Status, kept.Settled}, nil
}

// FinishRequest keeps what the request is answered, in the same transaction. What is not settled
// may be kept again.
func (s *Store) FinishRequest(ctx context.Context, key, digest string, a Answered) error {
	var answer *string
	if a.Answer != nil {
		text := string(a.Answer)
		answer = &text
	}
	return s.do(ctx, "keep the answer", "SELECT FROM public.finish_request($1, $2, $3, $4::text::jsonb, $5, $6)", key, digest, a.Location, answer, sql.NullInt32{Int32: int32(a.Status), Valid: a.Status != 0}, a.Settled)
}

// oneProblemALine finds where the next problem begins in a refusal that has
// several: SQL says them in one line, for PostgREST's status line.
var oneProblemALine = regexp.MustCompile(`; ((?:config_snapshot|p_[a-z_]+)[^ :]*: |\([0-9]+ more\)$)`)

// The errors of the database are those that package client has of a server.
type (
	// RefusedError is the database's no to a request.
	RefusedError = problem.RefusedError
	// UnreachableError says that the database could not be asked.
	UnreachableError = problem.UnreachableError
	// NotProvisionError says that a word is neither an id nor a number.
	NotProvisionError = problem.NotProvisionError
)

// translate turns what pgx returns into this package's errors. What the caller
// ended itself stays as it is.
func translate(doing string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		return refused
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if _, connecting := errors.AsType[*pgconn.ConnectError](err); connecting || !ok {
		return &UnreachableError{Doing: doing, Err: err}
	}
	e := &RefusedError{Code: pg.Code, Reason: pg.Detail, Message: pg.Message, Hint: pg.Hint, Err: err}
	if strings.HasPrefix(pg.Code, "PT4") {
		e.Message = oneProblemALine.ReplaceAllString(pg.Message, "\n$1")
		return e
	}
	e.Reason, e.Message = "", fmt.Sprintf("could not %s: %s (SQLSTATE %s)", doing, pg.Message, pg.Code)
	switch {
	case pg.Code == "42P01" || pg.Code == "42883" || pg.Code == "3F000" || pg.Code == "42703" || pg.Code == "22023" && strings.Contains(pg.Message, "role"):
		e.Hint = `this database has no Tendril contract, or an older one: run "trellis migrate" against it`
	case pg.Code == "42501":
		e.Hint = "the URL's login role must own the Tendril contract, or be a member of authenticated"
	case pg.Code[:2] == "22" || pg.Code[:2] == "23" || pg.Code[:2] == "42":
	default: // busy, shutting down, out of connections: it passes
		return &UnreachableError{Doing: doing, Err: err}
	}
	return e
}
