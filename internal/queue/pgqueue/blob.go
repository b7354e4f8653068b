package pgqueue

import (
	"cmp"
	"context"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/queue"
)

// PutBlob implements queue.Queue.
func (q *Queue) PutBlob(ctx context.Context, claimID uuid.UUID, blob queue.Blob, data []byte) error {
	meta := cmp.Or(string(blob.Meta), "{}")
	return q.link.PutBlob(ctx, blob.Kind, data, func(part, parts int, text string) error {
		return q.callFor(ctx, len(text), "store a "+blob.Kind, nil, "SELECT public.put_blob($1, $2, $3, $4, $5, $6, $7, $8::text::jsonb, $9)",
			q.credential.Hash(), claimID, blob.Kind, blob.Number, part, parts, blob.Digest, meta, text)
	})
}

// GetBlob implements queue.Queue.
func (q *Queue) GetBlob(ctx context.Context, claimID uuid.UUID, kind string, number int64) (queue.Blob, []byte, error) {
	return queue.CollectBlob(kind, number, func(number int64, part int) (p queue.PartOfBlob, err error) {
		err = q.callFor(ctx, queue.BlobPart, "read a "+kind, &p, "SELECT public.get_blob($1, $2, $3, $4, $5)", q.credential.Hash(), claimID, kind, number, part)
		return p, err
	})
}
