package rpcqueue_test

import (
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/queue"
)

// Whoever answers in the database's place must not have the agent run out of
// memory: what runs is ended with it. Not parallel, for it counts what all
// allocate.
func TestAnswersTakeLittleMemory(t *testing.T) {
	const row = `{"claim_id":"cc000000-0000-4000-8000-000000000001","provision_id":"90000000-0000-4000-8000-000000000001"}`
	fill := func(head, one, tail string) string {
		return head + strings.Repeat(one, (1<<20-len(head)-len(tail))/len(one)) + tail
	}
	for about, body := range map[string]string{
		"many rows":            fill("["+row, ",{}", "]"),
		"many rows of nothing": fill("[{}", ",{}", "]"),
		"many ids":             fill("[null", ",null", "]"),
		"one large name":       fill(`[{"`, "x", `":1}]`),
	} {
		q := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) })
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = q.Claim(t.Context(), uuid.New())
		_, _ = q.FailOrphans(t.Context(), nil)
		runtime.ReadMemStats(&after)
		if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 100 {
			t.Errorf("%s, an answer of %d bytes, took %d MiB, want no more than some of its size", about, len(body), took)
		}
	}
}

// A number of parts that no blob has is refused as damage. As an outage it would be asked
// for again for ever, by a run that has its slot meanwhile.
func TestBlobOfLessThanNoParts(t *testing.T) {
	t.Parallel()
	q := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"parts":-1,"number":1,"digest":"x","meta":{},"data":"eA=="}`))
	})
	_, _, err := q.GetBlob(t.Context(), uuid.New(), queue.BlobPlan, 0)
	if e := asError(t, err); e.Kind != queue.Refused || e.Reason != "blob_damaged" {
		t.Errorf("GetBlob() = %v, want it refused as damaged", e)
	}
}

func TestLargeHeaderIsNotRead(t *testing.T) {
	t.Parallel()
	q := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Large", strings.Repeat("x", 1<<20))
		_, _ = w.Write([]byte("[]"))
	})
	_, err := q.Claim(t.Context(), uuid.New())
	if e := asError(t, err); e.Kind != queue.Unavailable {
		t.Errorf("Claim() = %v, want it given up, as unavailable", e)
	}
}

// What is said in an error goes into logs and to a terminal.
func TestErrorsAreFitToPrint(t *testing.T) {
	t.Parallel()
	text := `\u001b]0;title\u0007\n` + strings.Repeat("x", 1<<18)
	q := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusConflict)
		_, _ = w.Write([]byte(`{"code":"PT409","message":"` + text + `","details":"claim_lost","hint":"` + text + `"}`))
	})
	_, err := q.Claim(t.Context(), uuid.New())
	e := asError(t, err)
	if said := e.Error(); e.Kind != queue.ClaimLost || len(said) > 5000 || strings.ContainsAny(said, "\x1b\x07\n") {
		t.Errorf("Claim() = %d bytes, beginning with %q, want a lost claim in some printable ones", len(said), said[:min(len(said), 40)])
	}
}

// A page that repeats the request may be cut short in the middle of the hash.
func TestHalfASecretIsNone(t *testing.T) {
	t.Parallel()
	for cut := range len(tokenHash) {
		q := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(strings.Repeat("x", 200-cut) + tokenHash))
		})
		_, err := q.Claim(t.Context(), uuid.New())
		if said := asError(t, err).Error(); strings.Contains(said, "x"+tokenHash[:1]) {
			t.Fatalf("Claim() = %q, want nothing of the hash in it", said)
		}
	}
}
