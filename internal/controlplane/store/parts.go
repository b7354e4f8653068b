package store

import (
	"context"
	"encoding/base64"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/queue"
)

// UploadPart brings one part of parts, from 1 on, of something that is sealed to a
// cluster's key, for an operation to name by its id, which is the caller's choice.
// Each has queue.BlobPart bytes but the last.
func (s *Store) UploadPart(ctx context.Context, cluster, id uuid.UUID, part, parts int, data []byte) error {
	_, err := one[uuid.UUID](ctx, s, "upload the file", "SELECT public.upload_blob($1, $2, $3, $4, $5) AS answer",
		cluster, part, parts, base64.StdEncoding.EncodeToString(data), id)
	return err
}

// ResultPart returns one part, from 1 on, of what a provision has left for who
// asked for it, sealed to the key that its snapshot names.
func (s *Store) ResultPart(ctx context.Context, provision uuid.UUID, part int) (queue.PartOfBlob, error) {
	return one[queue.PartOfBlob](ctx, s, "fetch the result", "SELECT public.fetch_result($1, $2) AS answer", provision, part)
}
