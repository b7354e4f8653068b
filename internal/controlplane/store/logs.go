package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/provision"
)

// LogRow is one piece of a provision's log: some lines, or a part of one.
type LogRow struct {
	Seq       int64            `db:"seq"` // 1, 2, 3, … without a gap
	Stream    provision.Stream `db:"stream_type"`
	Text      string           `db:"log_chunk"`
	EmittedAt time.Time        `db:"emitted_at"`
}

// Sight is what can change about a provision while somebody watches it.
type Sight struct {
	Status          provision.Status `db:"status"`
	Stage           *provision.Stage `db:"stage"`
	Percent         *int             `db:"percent"`
	Running         json.RawMessage  `db:"running"`
	ErrorCode       *string          `db:"error_code"`
	ErrorMessage    *string          `db:"error_message"`
	CancelRequested bool             `db:"cancel_requested"`
	StartedAt       *time.Time       `db:"started_at"`
	FinishedAt      *time.Time       `db:"finished_at"`
	// LastSeq is the newest row of the log, LastEvent the newest event.
	LastSeq   int64 `db:"last_seq"`
	LastEvent int64 `db:"last_event"`
	// Unsettled is true where the agent was lost and its lines are still taken:
	// more may come although the status is final.
	Unsettled bool `db:"unsettled"`
}

// Over reports whether nothing more is to come.
func (s Sight) Over() bool { return s.Status.Terminal() && !s.Unsettled }

// Look reads how a provision stands and then, unless bytes is 0, the rows of its
// log after seq, about that much text at most: so the log is complete once the
// status is final and the last of its rows is here. It asks as the contract's owner: whoever shows the answer to people
// asks MaySee as each of them. False when there is no such provision.
func (d *Database) Look(ctx context.Context, id uuid.UUID, after int64, bytes int) (sight Sight, log []LogRow, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	var batch pgx.Batch
	batch.Queue(`
		SELECT p.status, g.stage, g.percent, nullif(g.running, '[]') AS running, p.error_code, p.error_message,
		  p.cancel_requested_at IS NOT NULL AS cancel_requested, p.started_at, p.finished_at,
		  coalesce((SELECT h.next_seq - 1 FROM tendril.log_heads h WHERE h.provision_id = p.id), 0) AS last_seq,
		  coalesce((SELECT max(e.id) FROM public.provision_events e WHERE e.provision_id = p.id), 0) AS last_event,
		  coalesce((SELECT c.state = 'lost' AND (c.ended_at > clock_timestamp() - (SELECT late_log FROM tendril.settings)
		      OR EXISTS (SELECT FROM public.workspaces w WHERE w.id = c.workspace_id AND w.held_by_claim = c.id))
		    FROM tendril.claims c WHERE c.provision_id = p.id ORDER BY c.number DESC LIMIT 1), false) AS unsettled
		FROM public.provisions p LEFT JOIN public.provision_progress g ON g.provision_id = p.id WHERE p.id = $1`, id).Query(func(r pgx.Rows) error {
		seen, err := pgx.CollectRows(r, pgx.RowToStructByName[Sight])
		if found = len(seen) == 1; found {
			sight = seen[0]
		}
		return err
	})
	if bytes > 0 {
		batch.Queue(logQuery, id, after, lookRows, bytes).Query(func(r pgx.Rows) error {
			log, err = pgx.CollectRows(r, pgx.RowToStructByName[LogRow])
			return err
		})
	}
	return sight, log, found, translate("read the provision", d.pool.SendBatch(ctx, &batch).Close())
}

// lookRows bounds the rows of one Look.
const lookRows = 1000

// logQuery is for the contract's owner; people ask public.provision_log. Both read
// old logs, which are put together, like any other.
const logQuery = "SELECT seq, stream_type, log_chunk, emitted_at FROM tendril.log_page($1, $2, $3, $4)"

// LogPage returns rows of a provision's log after seq, at most limit (1000) and
// about bytes (1 MiB) of text: only an empty answer says that there is no more.
// A *RefusedError (PT404) for who may not see it.
func (s *Store) LogPage(ctx context.Context, id uuid.UUID, after int64, limit, bytes int) ([]LogRow, error) {
	return rows[LogRow](ctx, s, "read the log", "SELECT seq, stream_type, log_chunk, emitted_at FROM public.provision_log($1, $2, $3, $4)", id, after, limit, bytes)
}

// LogEnd returns the seq of the newest row of a provision's log, 0 when it has none.
func (s *Store) LogEnd(ctx context.Context, id uuid.UUID) (int64, error) {
	found, err := rows[struct{ Seq int64 }](ctx, s, "read the log", "SELECT "+logEnd+" AS seq FROM (SELECT $1::uuid AS id) p", id)
	if err != nil || len(found) == 0 {
		return 0, err
	}
	return found[0].Seq, nil
}

// logEnd is the newest row of the log of p.id: greatest passes over null.
const logEnd = `coalesce(greatest((SELECT max(seq) FROM public.provision_logs WHERE provision_id = p.id),
	(SELECT max(last_seq) FROM public.provision_log_archives WHERE provision_id = p.id)), 0)`

// MaySee refuses (PT404) who may not see a provision, or when there is none.
func (s *Store) MaySee(ctx context.Context, id uuid.UUID) error {
	found, err := rows[struct{ One int }](ctx, s, "find the provision", "SELECT 1 AS one FROM public.provisions WHERE id = $1", id)
	if err == nil && len(found) == 0 {
		return &RefusedError{Code: "PT404", Reason: "provision_not_found", Message: "there is no such provision, or you have no access to it"}
	}
	return err
}

// Owners tells to which organisation each of these belongs, provisions and
// clusters; what is neither is left out. It asks as the contract's owner.
func (d *Database) Owners(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]uuid.UUID, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	result, err := d.pool.Query(ctx, `SELECT id, org_id FROM public.provisions WHERE id = ANY ($1)
		UNION ALL SELECT id, org_id FROM public.clusters WHERE id = ANY ($1)`, ids)
	if err != nil {
		return nil, translate("read what has changed", err)
	}
	owners := map[uuid.UUID]uuid.UUID{}
	var id, org uuid.UUID
	_, err = pgx.ForEachRow(result, []any{&id, &org}, func() error {
		owners[id] = org
		return nil
	})
	return owners, translate("read what has changed", err)
}

// Notify sends a hint on a channel, as the database does.
func (d *Database) Notify(ctx context.Context, channel, payload string) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err := d.pool.Exec(ctx, "SELECT pg_notify($1, $2)", channel, payload)
	return translate("notify", err)
}

// Event is one thing that happened to a provision.
type Event struct {
	ID   int64     `db:"id"` // grows, with gaps
	Kind string    `db:"kind"`
	At   time.Time `db:"at"`
	// Detail has what the kind is about: a stage, a resource and what is done to it.
	Detail json.RawMessage `db:"detail"`
}

// Events returns what happened to a provision after the event of that id, in
// order, at most limit.
func (s *Store) Events(ctx context.Context, id uuid.UUID, after int64, limit int) ([]Event, error) {
	return rows[Event](ctx, s, "read the events", `
		SELECT id, kind, at, detail FROM public.provision_events
		WHERE provision_id = $1 AND id > $2 ORDER BY id LIMIT $3`, id, after, limit)
}

// Watch notes that people watch the logs of these provisions, which counts for a minute.
func (d *Database) Watch(ctx context.Context, provisions []uuid.UUID) error {
	return d.OwnerDoes(ctx, "note what is watched", "SELECT tendril.watch($1)", provisions)
}
