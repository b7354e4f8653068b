package retention

import (
	"context"

	"github.com/jackc/pgx/v5"
)

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
