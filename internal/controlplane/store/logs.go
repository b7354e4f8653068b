package store

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// LogRow is one piece of a provision's log: some lines, or a part of one.
type LogRow struct {
	Seq       int64            `db:"seq" json:"seq"` // 1, 2, 3, … without a gap
	Stream    provision.Stream `db:"stream_type" json:"stream"`
	Text      string           `db:"log_chunk" json:"text"`
	EmittedAt time.Time        `db:"emitted_at" json:"emitted_at"`
}

// Logs returns the rows of a provision's log after seq, at most limit. A row
// may have up to 64 KiB (provision.MaxChunk).
func (s *Store) Logs(ctx context.Context, id uuid.UUID, after int64, limit int) ([]LogRow, error) {
	return rows[LogRow](ctx, s, "read the log", `
		SELECT seq, stream_type, log_chunk, emitted_at FROM public.provision_logs
		WHERE provision_id = $1 AND seq > $2 ORDER BY seq LIMIT $3`, id, after, limit)
}
