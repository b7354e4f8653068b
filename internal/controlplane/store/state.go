package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// StateVersion is one of the states that are kept of a workspace.
type StateVersion struct {
	Version     int64      `db:"version" json:"version"`
	Serial      *int64     `db:"serial" json:"serial,omitempty"`
	Bytes       int64      `db:"bytes" json:"bytes"`
	StoredAt    time.Time  `db:"stored_at" json:"stored_at"`
	ProvisionID *uuid.UUID `db:"provision_id" json:"provision_id,omitempty"`
}

// StateVersions lists the managed states that are kept of a workspace, the
// newest first.
func (s *Store) StateVersions(ctx context.Context, workspace uuid.UUID) ([]StateVersion, error) {
	return rows[StateVersion](ctx, s, "list the states", "SELECT version, serial, bytes, stored_at, provision_id FROM public.state_versions($1)", workspace)
}
