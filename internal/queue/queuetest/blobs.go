package queuetest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// stateBlob describes a state of that version.
func stateBlob(number int64, data []byte) queue.Blob {
	sum := sha256.Sum256(data)
	return queue.Blob{Kind: queue.BlobState, Number: number, Digest: hex.EncodeToString(sum[:]), Meta: json.RawMessage(`{"serial": 7, "mac": "x"}`)}
}

// noise is so many bytes that cannot be compressed, as what is sealed cannot.
func noise(n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	return data
}

func blobComesBack(t *testing.T, w *World, open Open) {
	one, two := registered(t, w, open, "one"), registered(t, w, open, "two")
	w.Deploy(t, "a")
	a := mustClaim(t, one)
	if _, _, err := one.GetBlob(t.Context(), a.ClaimID, queue.BlobState, 0); !errors.Is(err, queue.ErrNoBlob) {
		t.Fatalf("GetBlob() before there is one = %v, want ErrNoBlob", err)
	}
	// One byte more than two parts.
	large := noise(2*queue.BlobPart + 1)
	for _, data := range [][]byte{[]byte("small"), large, large} { // the last one is a repeat
		number := int64(1)
		if len(data) == len(large) {
			number = 2
		}
		if err := one.PutBlob(t.Context(), a.ClaimID, stateBlob(number, data), data); err != nil {
			t.Fatalf("PutBlob(%d bytes) = %v, want nil", len(data), err)
		}
	}
	mustReport(t, one, a.ClaimID, provision.Success, provision.Detail{})
	w.Deploy(t, "a")
	a = mustClaim(t, two)
	want := stateBlob(2, large)
	for _, number := range []int64{0, want.Number} {
		blob, data, err := two.GetBlob(t.Context(), a.ClaimID, queue.BlobState, number)
		if err != nil || !bytes.Equal(data, large) || blob.Kind != want.Kind || blob.Number != want.Number || blob.Digest != want.Digest || !sameJSON(blob.Meta, want.Meta) {
			t.Errorf("GetBlob(%d) = %+v, %d bytes, %v, want %+v and %d bytes", number, blob, len(data), err, want, len(large))
		}
	}
	if _, _, err := two.GetBlob(t.Context(), a.ClaimID, queue.BlobState, want.Number+1); !errors.Is(err, queue.ErrNoBlob) {
		t.Errorf("GetBlob() of a version that is not there = %v, want ErrNoBlob", err)
	}
}

func sameJSON(a, b json.RawMessage) bool {
	var one, other any
	return json.Unmarshal(a, &one) == nil && json.Unmarshal(b, &other) == nil && reflect.DeepEqual(one, other)
}

func blobIsFencedByItsClaim(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	w.Deploy(t, "a")
	a := mustClaim(t, q)
	mustReport(t, q, a.ClaimID, provision.Success, provision.Detail{})
	for _, claim := range []uuid.UUID{a.ClaimID, uuid.New()} {
		err := q.PutBlob(t.Context(), claim, stateBlob(1, []byte("late")), []byte("late"))
		_ = wantKind(t, "PutBlob() under a claim that is over", err, queue.ClaimLost)
		_, _, err = q.GetBlob(t.Context(), claim, queue.BlobState, 0)
		_ = wantKind(t, "GetBlob() under a claim that is over", err, queue.ClaimLost)
	}
}

func damagedBlobIsTold(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	w.Deploy(t, "a")
	a := mustClaim(t, q)
	if err := q.PutBlob(t.Context(), a.ClaimID, stateBlob(1, []byte("a state")), []byte("a state")); err != nil {
		t.Fatalf("PutBlob() = %v, want nil", err)
	}
	_ = wantKind(t, "PutBlob() of another under its number", q.PutBlob(t.Context(), a.ClaimID, stateBlob(1, []byte("no state")), []byte("no state")), queue.Refused)
	w.Exec(t, "UPDATE tendril.blob_parts SET data = 'a spate'")
	_, _, err := q.GetBlob(t.Context(), a.ClaimID, queue.BlobState, 0)
	_ = wantKind(t, "GetBlob() of what somebody has changed", err, queue.Refused)
}
