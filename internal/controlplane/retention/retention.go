// Package retention cleans up after old logs in one go, for the database's owner:
// it has the database archive what is due, step by step, and gives the room back.
// Servers do the first by themselves, a little at a time; none does the second.
//
// What is due, and how a log is archived, says SQL (tendril.archive_logs). The
// package must know nothing of people, servers and terminals. It needs the rights
// of the role that has migrated and no others, and a connection of its own: VACUUM
// is no part of a transaction.
package retention

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Session is a connection as the contract's owner, for one run. It is not safe
// for concurrent use; several of them are, on one database.
type Session struct{ conn *pgx.Conn }

// Open connects. Statements of the session may take as long as they need,
// whatever the role's limit is: a VACUUM takes minutes.
func Open(ctx context.Context, url string) (*Session, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err) // pgx redacts the password in this error
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.RuntimeParams["application_name"] = "trellis gc"
	config.RuntimeParams["statement_timeout"] = "0"
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = 5 * time.Second
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return &Session{conn}, nil
}

// Close ends the connection.
func (s *Session) Close(ctx context.Context) error { return s.conn.Close(ctx) }

// Due is how much would be archived.
type Due struct {
	Logs int64 `json:"logs"`
	Rows int64 `json:"rows"`
	// Bytes is about how much text they have.
	Bytes int64 `json:"bytes"`
}

// Due counts the logs that are older than an interval in PostgreSQL's words, by
// what is noted of each; "" means as the database is set.
func (s *Session) Due(ctx context.Context, olderThan string) (Due, error) {
	rows, err := s.conn.Query(ctx, `
		SELECT count(*) AS logs, coalesce(sum(h.next_seq - 1), 0)::bigint AS rows, coalesce(sum(h.bytes), 0)::bigint AS bytes
		FROM public.provisions p JOIN tendril.log_heads h ON h.provision_id = p.id, tendril.settings s
		WHERE p.status IN ('SUCCESS', 'FAILED', 'CANCELLED') AND NOT h.archived AND h.next_seq > 1
		  AND coalesce(nullif($1, '')::interval, s.log_archive_after) IS NOT NULL
		  AND p.finished_at < clock_timestamp() - greatest(coalesce(nullif($1, '')::interval, s.log_archive_after), s.late_log)
		  AND NOT EXISTS (SELECT FROM tendril.claims c JOIN public.workspaces w ON w.held_by_claim = c.id WHERE c.provision_id = p.id)
		  AND EXISTS (SELECT FROM public.provision_logs l WHERE l.provision_id = p.id)`, olderThan)
	if err != nil {
		return Due{}, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Due])
}

// Sizes are in bytes on the disk.
type Sizes struct {
	Rows    int64 `json:"rows"`    // the table of rows …
	Texts   int64 `json:"texts"`   // … what of it is stored apart, for it is long
	Indexes int64 `json:"indexes"` // … and its key
	Archive int64 `json:"archive"` // what was archived, all in all
}

// Total is all of it.
func (s Sizes) Total() int64 { return s.Rows + s.Texts + s.Indexes + s.Archive }

// Sizes asks how much room logs take.
func (s *Session) Sizes(ctx context.Context) (Sizes, error) {
	rows, err := s.conn.Query(ctx, `
		SELECT pg_relation_size(t) AS rows, pg_table_size(t) - pg_relation_size(t) AS texts, pg_indexes_size(t) AS indexes,
		       pg_total_relation_size('public.provision_log_archives') AS archive
		FROM (SELECT 'public.provision_logs'::regclass AS t) t`)
	if err != nil {
		return Sizes{}, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Sizes])
}
