package store

import (
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// LogRow is one piece of a provision's log: some lines, or a part of one.
type LogRow struct {
	Seq       int64            `db:"seq" json:"seq"` // 1, 2, 3, … without a gap
	Stream    provision.Stream `db:"stream_type" json:"stream"`
	Text      string           `db:"log_chunk" json:"text"`
	EmittedAt time.Time        `db:"emitted_at" json:"emitted_at"`
}
