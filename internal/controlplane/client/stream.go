package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/tmaxmax/go-sse"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// mostEvent bounds one event: a row of a log, escaped.
const mostEvent = 1 << 20

// event is one of a log's stream: a row, or a hint to look.
type event struct {
	row *store.LogRow
	end bool // nothing more comes
}

// stream is a log's event stream, read by a goroutine of its own.
type stream struct {
	events chan event // closed when it is cut
	cancel context.CancelFunc
	opened time.Time
	heard  atomic.Int64 // when a byte came last, in nanoseconds since opened; 0: never
}

// openStream asks for the rows of a log after seq as they come. The stream that
// is returned ends at once where there is none.
func (c *Client) openStream(ctx context.Context, id uuid.UUID, seq int64) *stream {
	ctx, cancel := context.WithCancel(ctx)
	s := &stream{events: make(chan event), cancel: cancel, opened: time.Now()}
	go func() {
		defer close(s.events)
		response, err := c.once(ctx, call{
			method: http.MethodGet, path: []string{"provisions", id.String(), "logs", "stream"}, accept: "text/event-stream",
			query: map[string][]string{"after": {strconv.FormatInt(seq, 10)}},
		}, nil, "")
		if err != nil {
			return
		}
		defer func() { _ = response.Body.Close() }()
		if response.StatusCode >= 500 || response.StatusCode == http.StatusTooManyRequests {
			return // it may be there later
		}
		if response.StatusCode != http.StatusOK || !strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream") {
			<-ctx.Done() // it is asked for instead, and not for a stream again
			return
		}
		s.read(ctx, response.Body)
	}()
	return s
}

func (s *stream) read(ctx context.Context, body io.Reader) {
	for e, err := range sse.Read(&heardReader{body, s}, &sse.ReadConfig{MaxEventSize: mostEvent}) {
		if err != nil {
			return
		}
		got := event{end: e.Type == "end"}
		if e.Type == "log" {
			row := &store.LogRow{}
			if json.Unmarshal([]byte(e.Data), row) != nil || row.Seq < 1 {
				return // cut in the middle
			}
			got.row = row
		}
		select {
		case s.events <- got:
		case <-ctx.Done():
			return
		}
	}
}

// quiet reports whether the stream has said nothing yet, or nothing for longer
// than it would: a proxy may keep what it is sent.
func (s *stream) quiet(t timing) bool {
	heard := time.Duration(s.heard.Load())
	return heard == 0 || time.Since(s.opened)-heard > t.silent
}

// close ends the stream and waits for its goroutine.
func (s *stream) close() {
	s.cancel()
	for range s.events { // nobody wants what is left
	}
}

// heardReader notes when something was read.
type heardReader struct {
	io.Reader
	stream *stream
}

func (r *heardReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.stream.heard.Store(max(1, int64(time.Since(r.stream.opened))))
	}
	return n, err
}
