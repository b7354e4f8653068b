package queue

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// BlobPart is the most bytes of a blob that one call carries.
const BlobPart = 512 << 10

// mostParts is how many parts the database takes of a blob, by its kind.
func mostParts(kind string) int {
	switch kind {
	case BlobPlan:
		return 16
	case BlobState:
		return 513
	default:
		return 128
	}
}

// The kinds of blob.
const (
	// BlobPlan is the plan bundle of a provision that awaits approval.
	BlobPlan = "plan"
	// BlobState is a version of a workspace's managed state, by its number.
	BlobState = "state"
	// BlobResult is what a state operation read, for who asked for it.
	BlobResult = "result"
	// BlobUpload is what a person has brought for a state operation: the one
	// that the claim's snapshot names.
	BlobUpload = "upload"
)

// ErrNoBlob is returned where there is no such blob.
var ErrNoBlob = errors.New("no such blob")

// Blob is what the database keeps beside the bytes of something sealed that an
// agent has made, or is to read.
type Blob struct {
	Kind string
	// Number is the version of a state; of what is got, 0 asks for the newest.
	Number int64
	// Digest is SHA-256 in hexadecimal: of the clear content of a plan, else of
	// the bytes.
	Digest string
	// Meta is the maker's own, such as a MAC; a JSON object of at most 4 KiB.
	Meta json.RawMessage
}

// PartOfBlob is what get_blob answers, the same on every transport.
type PartOfBlob struct {
	// Parts is how many there are, 0 where there is no such blob.
	Parts  int             `json:"parts"`
	Number int64           `json:"number"`
	Digest string          `json:"digest"`
	Meta   json.RawMessage `json:"meta"`
	Data   string          `json:"data"` // base64
}

// blobDamaged is the reason of a blob that no agent has stored like this.
const blobDamaged = "blob_damaged"

// CollectBlob calls get for each part of a blob in turn and puts them together.
// The number that the first call is answered with stands for all that follow.
func CollectBlob(kind string, number int64, get func(number int64, part int) (PartOfBlob, error)) (Blob, []byte, error) {
	var first PartOfBlob
	var data []byte
	for part := 1; part == 1 || part <= first.Parts; part++ {
		p, err := get(number, part)
		switch {
		case err != nil:
			return Blob{}, nil, err
		case p.Parts == 0 && part == 1:
			return Blob{}, nil, ErrNoBlob
		case part == 1 && (p.Parts < 0 || p.Parts > mostParts(kind)):
			return Blob{}, nil, &Error{Kind: Refused, Reason: blobDamaged,
				Message: fmt.Sprintf("the %s in the database is said to have %d parts; at most %d are allowed", kind, p.Parts, mostParts(kind))}
		case part == 1:
			first, number = p, p.Number
		case p.Parts != first.Parts || p.Digest != first.Digest:
			// Repeating is safe, and finds it as it is now.
			return Blob{}, nil, &Error{Kind: Unavailable, Message: fmt.Sprintf("the %s has changed while it was read", kind)}
		}
		piece, err := base64.StdEncoding.DecodeString(p.Data)
		if err != nil {
			return Blob{}, nil, &Error{Kind: Refused, Message: fmt.Sprintf("part %d of the %s is no base64", part, kind), Err: err}
		}
		if len(piece) > BlobPart {
			return Blob{}, nil, &Error{Kind: Refused, Reason: blobDamaged,
				Message: fmt.Sprintf("part %d of the %s has %d bytes; at most %d are allowed", part, kind, len(piece), BlobPart)}
		}
		if data == nil {
			data = make([]byte, 0, min(first.Parts, mostParts(kind))*min(len(piece), BlobPart))
		}
		data = append(data, piece...)
	}
	if sum := sha256.Sum256(data); kind != BlobPlan && hex.EncodeToString(sum[:]) != first.Digest {
		return Blob{}, nil, &Error{Kind: Refused, Reason: blobDamaged,
			Message: fmt.Sprintf("the %s in the database is damaged: it is not what its digest says", kind)}
	}
	return Blob{Kind: kind, Number: first.Number, Digest: first.Digest, Meta: first.Meta}, data, nil
}
