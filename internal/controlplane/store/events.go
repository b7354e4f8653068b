package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Event is one thing that happened to a provision.
type Event struct {
	ID   int64     `db:"id" json:"id"` // grows, with gaps
	Kind string    `db:"kind" json:"kind"`
	At   time.Time `db:"at" json:"at"`
	// Detail has what the kind is about: a stage, a resource and what is done to it.
	Detail json.RawMessage `db:"detail" json:"detail"`
}

// Events returns what happened to a provision after the event of that id, in
// order, at most limit.
func (s *Store) Events(ctx context.Context, id uuid.UUID, after int64, limit int) ([]Event, error) {
	return rows[Event](ctx, s, "read the events", `
		SELECT id, kind, at, detail FROM public.provision_events
		WHERE provision_id = $1 AND id > $2 ORDER BY id LIMIT $3`, id, after, limit)
}
