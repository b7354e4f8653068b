package rpcqueue_test

import (
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// What is too large for a proxy goes in parts, in order, and from then on at
// once in parts of that size.
func TestLinesThatAreTooLargeGoInParts(t *testing.T) {
	t.Parallel()
	const most = 100_000
	var stored strings.Builder
	next, refused := int64(1), 0
	q := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > most {
			refused++
			http.Error(w, "<title>413 Request Entity Too Large</title>", http.StatusRequestEntityTooLarge)
			return
		}
		var args arguments
		decode(t, r, &args)
		if args.First != next {
			t.Errorf("first = %d, want %d", args.First, next)
		}
		for _, c := range args.Chunks {
			stored.WriteString(c.Text)
		}
		next += int64(len(args.Chunks))
		_, _ = w.Write([]byte(strconv.FormatInt(next, 10)))
	})
	var sent strings.Builder
	for batch := range 2 {
		var chunks []provision.LogChunk
		for i := range 50 {
			text := strings.Repeat(strconv.Itoa(i), 8000)[:8000] + "\n"
			sent.WriteString(text)
			chunks = append(chunks, provision.LogChunk{Stream: provision.Stdout, Text: text, EmittedAt: time.Now()})
		}
		appendAll(t, q, int64(batch*50+1), chunks)
	}
	if stored.String() != sent.String() {
		t.Errorf("stored %d bytes, want the %d that were sent, in order", stored.Len(), sent.Len())
	}
	if refused < 1 || refused > 3 {
		t.Errorf("requests refused for their size = %d, want that to be learned from the first few", refused)
	}
}

// A proxy that has seen the size says no, reads nothing of the body and hangs
// up: that is heard, also of chunks that are small until they are escaped.
func TestLinesThatAreNotEvenRead(t *testing.T) {
	t.Parallel()
	q := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength <= 1<<20 {
			var args arguments
			decode(t, r, &args)
			_, _ = w.Write([]byte(strconv.FormatInt(args.First+int64(len(args.Chunks)), 10)))
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = conn.Write([]byte("HTTP/1.1 413 Request Entity Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"))
		_ = conn.Close() // with what was sent unread, which breaks the connection
	})
	var chunks []provision.LogChunk
	for range 50 {
		chunks = append(chunks, provision.LogChunk{Stream: provision.Stdout, Text: strings.Repeat("\x01", 10_000), EmittedAt: time.Now()})
	}
	appendAll(t, q, 1, chunks)
}

// appendAll stores chunks in as many calls as it takes, none of which may fail.
func appendAll(t *testing.T, q queue.Queue, first int64, chunks []provision.LogChunk) {
	t.Helper()
	for len(chunks) > 0 {
		next, err := q.AppendLog(t.Context(), uuid.New(), first, chunks)
		if err != nil || next <= first || next > first+int64(len(chunks)) {
			t.Fatalf("AppendLog(%d) = %d, %v, want some of %d chunks stored", first, next, err, len(chunks))
		}
		first, chunks = next, chunks[next-first:]
	}
}

// The gateway's own limit is met likewise. No database is behind this one, so
// what gets past the limit is unavailable.
func TestLinesThatAreTooLargeForTheGateway(t *testing.T) {
	t.Parallel()
	gateway, err := rpcgateway.New(t.Context(), rpcgateway.Options{
		DatabaseURL: "postgres://nobody@127.0.0.1:1/none", MaxBody: 100_000, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gateway.Close)
	q := serve(t, gateway.ServeHTTP)
	chunk := provision.LogChunk{Stream: provision.Stdout, Text: strings.Repeat("x", 10_000), EmittedAt: time.Now()}
	_, err = q.AppendLog(t.Context(), uuid.New(), 1, slices.Repeat([]provision.LogChunk{chunk}, 50))
	if e := asError(t, err); e.Kind != queue.Unavailable {
		t.Errorf("AppendLog() = %v, want the parts to get past the limit", e)
	}
}

// One chunk cannot be parted, and a report neither: that would fail for ever.
func TestTooLargeForAnything(t *testing.T) {
	t.Parallel()
	q := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusRequestEntityTooLarge) })
	_, err := q.AppendLog(t.Context(), uuid.New(), 1, []provision.LogChunk{{Text: "x"}})
	reported := q.Report(t.Context(), uuid.New(), provision.Report{Status: provision.Success})
	for call, err := range map[string]error{"AppendLog": err, "Report": reported} {
		if e := asError(t, err); e.Kind != queue.ContentRefused || !strings.Contains(e.Hint, "bodies of 2 MB") {
			t.Errorf("%s() = %v, want it refused, with what to do", call, e)
		}
	}
}
