package retention

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// blocks are moved at once: 60 rows of up to 64 KiB each in a block.
	blocks = 64
	// passes over the table: what is moved into the last blocks again is less each
	// time.
	passes = 4
	// tries of a batch that waits for somebody's lock.
	tries = 10
)

// Compact gives the room of removed rows back to the disk while agents write and
// people read. Old rows were at the front of the file and young ones are at its
// end, where VACUUM could cut it off; so the last blocks' rows are moved forward,
// a few at a time, into the room that VACUUM has found, until there is none. Then
// the key is built anew beside the old one.
//
// It tells after each batch how many rows were moved. A row that is moved is
// deleted and inserted by one statement: nobody sees none or two, but logical
// replication, and so Realtime, tells of both. Nothing is archived meanwhile.
func (s *Session) Compact(ctx context.Context, tell func(moved int64)) (moved int64, err error) {
	for range passes {
		// INDEX_CLEANUP: a few dead rows in a large table would else keep their blocks.
		if err := s.run(ctx, "VACUUM (INDEX_CLEANUP ON, TRUNCATE ON) public.provision_logs"); err != nil {
			return moved, err
		}
		count, err := s.pass(ctx, func(n int64) { tell(moved + n) })
		moved += count
		if err != nil {
			return moved, err
		}
		if count == 0 {
			break
		}
	}
	if err := s.run(ctx, "VACUUM (ANALYZE, INDEX_CLEANUP ON, TRUNCATE ON) public.provision_logs"); err != nil {
		return moved, err
	}
	return moved, s.reindex(ctx)
}

// pass moves rows from the end of the table on until they get no further forward.
func (s *Session) pass(ctx context.Context, tell func(int64)) (moved int64, err error) {
	var end int64
	if err := s.conn.QueryRow(ctx, "SELECT pg_relation_size('public.provision_logs') / current_setting('block_size')::int").Scan(&end); err != nil {
		return 0, err
	}
	for end > 0 {
		from := max(end-blocks, 0)
		count, forward, err := s.batch(ctx, from, end)
		if err != nil {
			return moved, err
		}
		if count > 0 && forward*2 < count {
			return moved, nil // there is no room in front; these were for nothing
		}
		moved += count
		tell(moved)
		end = from
	}
	return moved, nil
}

// batch moves the rows of some blocks, and tells how many of them got in front of
// these. It waits for who has a lock, and then tries again.
func (s *Session) batch(ctx context.Context, from, end int64) (count, forward int64, err error) {
	for try := 1; ; try++ {
		err = pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
			// The lock keeps archive_logs() away. The provisions first: who deletes one
			// waits for that, and must not for what hangs on it.
			_, err := tx.Exec(ctx, "SELECT set_config('lock_timeout', '2s', true) FROM (SELECT FROM tendril.locks WHERE name = 'archive' FOR UPDATE) l")
			if err != nil {
				return err
			}
			return tx.QueryRow(ctx, fmt.Sprintf(`
				WITH here AS (SELECT p.id FROM public.provisions p WHERE p.id IN (
				    SELECT l.provision_id FROM public.provision_logs l WHERE l.ctid >= '(%[1]d,0)' AND l.ctid < '(%[2]d,0)') FOR KEY SHARE),
				  gone AS (DELETE FROM public.provision_logs l WHERE l.ctid >= '(%[1]d,0)' AND l.ctid < '(%[2]d,0)' AND l.provision_id IN (SELECT id FROM here) RETURNING l.*),
				  put AS (INSERT INTO public.provision_logs SELECT * FROM gone RETURNING ctid)
				SELECT count(*), count(*) FILTER (WHERE (ctid::text::point)[0] < %[1]d) FROM put`, from, end)).Scan(&count, &forward)
		})
		if refused, ok := errors.AsType[*pgconn.PgError](err); !ok || try == tries || refused.Code != "55P03" && refused.Code != "40P01" {
			return count, forward, err
		}
		select {
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		case <-time.After(time.Duration(try) * 50 * time.Millisecond):
		}
	}
}

// reindex builds the table's indexes anew, beside the old ones; readers and
// writers go on. One that was broken off leaves half an index, which is removed.
func (s *Session) reindex(ctx context.Context) error {
	rows, err := s.conn.Query(ctx, `SELECT format('DROP INDEX CONCURRENTLY %s', indexrelid::regclass) FROM pg_index
		WHERE indrelid = 'public.provision_logs'::regclass AND NOT indisvalid AND indexrelid::regclass::text ~ '_cc(new|old)\d*$'`)
	if err != nil {
		return err
	}
	drops, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, statement := range append(drops, "REINDEX TABLE CONCURRENTLY public.provision_logs") {
		if err := s.run(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// Rewrite writes the table anew, without any gap: it takes less than Compact, and
// nobody reads or writes a log meanwhile. Agents keep their lines and send them
// then.
func (s *Session) Rewrite(ctx context.Context) error {
	return s.run(ctx, "VACUUM (FULL, ANALYZE) public.provision_logs")
}
