package queue_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/queue"
)

// A database that says that a blob is larger than the contract allows is not read
// any further, whatever it goes on to send.
func TestBlobBeyondTheContract(t *testing.T) {
	t.Parallel()
	part := base64.StdEncoding.EncodeToString(make([]byte, queue.BlobPart))
	large := base64.StdEncoding.EncodeToString(make([]byte, queue.BlobPart+1))
	for name, tc := range map[string]struct {
		kind  string
		parts int
		data  string
		says  string
	}{
		"two billion parts of a state": {queue.BlobState, 2_000_000_000, part, "2000000000 parts; at most 513"},
		"a plan as large as a state":   {queue.BlobPlan, 513, part, "at most 16"},
		"fewer than none":              {queue.BlobState, -1, part, "-1 parts"},
		"a part that is too large":     {queue.BlobState, 2, large, "524289 bytes; at most 524288"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := 0
			_, data, err := queue.CollectBlob(tc.kind, 0, func(int64, int) (queue.PartOfBlob, error) {
				if asked++; asked > 20 {
					t.Fatalf("asked for part %d", asked) // each takes half a MiB
				}
				return queue.PartOfBlob{Parts: tc.parts, Number: 1, Digest: "x", Data: tc.data}, nil
			})
			if asked != 1 || data != nil || !queue.Final(err) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("CollectBlob() = %d bytes, %v, after %d questions, want a refusal that says %q after one", len(data), err, asked, tc.says)
			}
		})
	}
}
