package rpcqueue

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/postgrest"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// lines are the arguments of insert_provision_log. Without chunks p_chunks is
// null: a question only.
type lines struct {
	Hash   string               `json:"p_token_hash"`
	Claim  uuid.UUID            `json:"p_claim_id"`
	First  int64                `json:"p_first_chunk"`
	Chunks []provision.LogChunk `json:"p_chunks"`
}

// AppendLog implements queue.Queue. Where a body is too large for what stands
// between, the chunks go in several calls.
func (q *Queue) AppendLog(ctx context.Context, claimID uuid.UUID, first int64, chunks []provision.LogChunk) (int64, error) {
	most := len(chunks)
	for {
		part := q.fitting(chunks[:min(most, len(chunks))])
		body, err := encode(lines{q.credential.Hash(), claimID, first, part})
		if err != nil {
			return 0, err
		}
		var next chunkNumber
		err = q.send(ctx, "store log lines", "insert_provision_log", body, &next)
		if len(part) > 1 && tooLarge(err) {
			q.mostText.Store(sizeOf(part) / 2)
			continue
		}
		if len(part) > 1 && hungUp(err) {
			most = len(part) / 2
			continue
		}
		sent := first + int64(len(part))
		if err != nil || len(part) == len(chunks) || int64(next) < sent {
			return int64(next), err
		}
		first, chunks = sent, chunks[len(part):]
	}
}

// perChunk is about what a chunk takes beside its text.
const perChunk = 80

// sizeOf is about how large chunks are, before their texts are escaped.
func sizeOf(chunks []provision.LogChunk) (size int64) {
	for _, c := range chunks {
		size += int64(len(c.Text)) + perChunk
	}
	return size
}

// fitting returns as many of the chunks as are let pass, one at least.
func (q *Queue) fitting(chunks []provision.LogChunk) []provision.LogChunk {
	most := q.mostText.Load()
	if most == 0 {
		return chunks
	}
	n := len(chunks)
	for n > 1 && sizeOf(chunks[:n]) > most {
		n--
	}
	return chunks[:n]
}

// tooLarge reports whether something refused a call for its size, other than the
// database itself.
func tooLarge(err error) bool {
	e, ok := errors.AsType[*queue.Error](err)
	return ok && e.Reason == postgrest.BodyTooLarge
}

// hungUp reports whether the other side broke the connection, which is also how
// one ends that says no to a large body without reading it: the answer is lost
// then as often as not. Less may pass, and if it was something else, nothing is
// lost by it; so it is not kept in mind.
func hungUp(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// encode is json.Marshal without escapes that only HTML needs, and into one piece
// of memory, with room for a coloured log's escapes: this is on the way of every
// byte that is logged. (Escapes written by hand save a sixth of its time, and that
// is a hundredth of what a batch takes.)
func encode(l lines) ([]byte, error) {
	size := 256
	for _, c := range l.Chunks {
		size += len(c.Text) + len(c.Text)/4 + perChunk
	}
	body := bytes.NewBuffer(make([]byte, 0, size))
	encoder := json.NewEncoder(body)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(l); err != nil {
		return nil, fmt.Errorf("encode log lines: %w", err)
	}
	return body.Bytes(), nil
}
