package store

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/queue"
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

// Upload brings something that is sealed to a cluster's key, for an operation to
// name by the id returned.
func (s *Store) Upload(ctx context.Context, cluster uuid.UUID, sealed []byte) (uuid.UUID, error) {
	id := uuid.New()
	err := queue.SendBlob(sealed, func(part, parts int, text string) error {
		_, err := one[uuid.UUID](ctx, s, "upload the file", "SELECT public.upload_blob($1, $2, $3, $4, $5) AS answer", cluster, part, parts, text, id)
		return err
	})
	return id, err
}

// Result returns what a provision has left for who asked for it, sealed to the
// key that its snapshot names.
func (s *Store) Result(ctx context.Context, provision uuid.UUID) ([]byte, error) {
	_, sealed, err := queue.CollectBlob(queue.BlobResult, 0, func(_ int64, part int) (queue.PartOfBlob, error) {
		return one[queue.PartOfBlob](ctx, s, "fetch the result", "SELECT public.fetch_result($1, $2) AS answer", provision, part)
	})
	return sealed, err
}
