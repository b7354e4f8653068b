package rpcqueue

import (
	"cmp"
	"context"
	"encoding/json"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/queue"
)

// blobOf begins the arguments of what is about a blob.
type blobOf struct {
	Hash   string    `json:"p_token_hash"`
	Claim  uuid.UUID `json:"p_claim_id"`
	Kind   string    `json:"p_kind"`
	Number int64     `json:"p_number"`
	Part   int       `json:"p_part"`
}

// PutBlob implements queue.Queue.
func (q *Queue) PutBlob(ctx context.Context, claimID uuid.UUID, blob queue.Blob, data []byte) error {
	meta := json.RawMessage(cmp.Or(string(blob.Meta), "{}"))
	return q.link.PutBlob(ctx, blob.Kind, data, func(part, parts int, text string) error {
		return q.call(ctx, "store a "+blob.Kind, "put_blob", struct {
			blobOf
			Parts  int             `json:"p_parts"`
			Digest string          `json:"p_digest"`
			Meta   json.RawMessage `json:"p_meta"`
			Data   string          `json:"p_data"`
		}{blobOf{q.credential.Hash(), claimID, blob.Kind, blob.Number, part}, parts, blob.Digest, meta, text}, nil)
	})
}

// GetBlob implements queue.Queue.
func (q *Queue) GetBlob(ctx context.Context, claimID uuid.UUID, kind string, number int64) (queue.Blob, []byte, error) {
	return queue.CollectBlob(kind, number, func(number int64, part int) (queue.PartOfBlob, error) {
		var p partOfBlob
		err := q.callFor(ctx, queue.BlobPart, "read a "+kind, "get_blob", blobOf{q.credential.Hash(), claimID, kind, number, part}, &p)
		return queue.PartOfBlob(p), err
	})
}

// partOfBlob is what get_blob answers.
type partOfBlob queue.PartOfBlob

// valid leaves a number that no blob has to CollectBlob, which refuses it: what is no answer
// at all would count as an outage, and be asked for again for ever.
func (p *partOfBlob) valid() bool {
	return p.Parts != 0 || string(p.Meta) == "" && p.Data == "" && p.Digest == ""
}
