// Package retention archives old logs at once, for the database's owner, and gives
// their disk space back. Servers archive too, a little at a time, but free no disk.
//
// SQL decides what is due and how a log is archived (tendril.archive_logs). The
// package must know nothing of people, servers and terminals. It needs the rights
// of the role that migrated, and its own connection, because VACUUM runs outside of
// transactions.
//
// A log row costs a hundred bytes besides its text and compresses badly alone, so
// the rows of an ended run become arrays of 4 MiB. The statement that removes the
// rows makes the part of exactly those rows; wherever it is cut, nothing is lost or
// doubled. Compacting moves the last rows forward by deleting and inserting,
// because VACUUM gives back only the end of a table, and an UPDATE would put a row
// into its own block.
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

// Archived is how much was archived.
type Archived struct {
	Logs  int64 `json:"logs"`
	Rows  int64 `json:"rows"`
	Bytes int64 `json:"bytes"` // of text
}

// Archive archives all logs that are older than an interval, as Due does, and
// tells after each step how much that is so far. What is done when the context
// ends stays done.
func (s *Session) Archive(ctx context.Context, olderThan string, tell func(Archived)) (done Archived, err error) {
	for {
		rows, err := s.conn.Query(ctx, "SELECT logs::bigint, chunks AS rows, bytes, more FROM tendril.archive_logs(p_older_than => nullif($1, '')::interval, p_time => '2 seconds')", olderThan)
		if err != nil {
			return done, err
		}
		step, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[struct {
			Logs, Rows, Bytes int64
			More              bool
		}])
		if err != nil {
			return done, err
		}
		done.Logs, done.Rows, done.Bytes = done.Logs+step.Logs, done.Rows+step.Rows, done.Bytes+step.Bytes
		tell(done)
		if !step.More {
			return done, nil
		}
	}
}

// Delete deletes the logs that are beyond tendril.settings.log_delete_after, and
// returns how many.
func (s *Session) Delete(ctx context.Context) (count int64, err error) {
	for {
		var some int64
		if err := s.conn.QueryRow(ctx, "SELECT tendril.delete_logs()::bigint").Scan(&some); err != nil || some == 0 {
			return count, err
		}
		count += some
	}
}

// Vacuum has the room of what was removed used again, and the planner know what
// is left. Room at the end of a file goes back to the disk; there is little,
// because what was added last is there.
func (s *Session) Vacuum(ctx context.Context) error {
	for _, table := range []string{"public.provision_logs", "public.provision_log_archives", "tendril.log_heads", "tendril.log_ends"} {
		if err := s.run(ctx, "VACUUM (ANALYZE, INDEX_CLEANUP ON) "+table); err != nil {
			return err
		}
	}
	return nil
}

func (s *Session) run(ctx context.Context, statement string) error {
	_, err := s.conn.Exec(ctx, statement)
	return err
}
