package client

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
)

// logServer has a provision whose log grows as it is streamed and looked at, and
// streams it in bad ways.
type logServer struct {
	mu      sync.Mutex
	rows    int64 // that there are
	taken   int64 // that the client has
	streams int   // that were opened
	ranges  int   // that were asked for
	apart   int   // of them, before the first row came by a stream
	looks   int
	refused int
	// stream answers the request for a stream, of rows after seq; nil: 404.
	stream func(s *logServer, w http.ResponseWriter, r *http.Request, after int64)
	// down makes everything fail while it is true; it is called with the lock held.
	down func(s *logServer) bool
}

const (
	rowsAll  = 120
	rowEvery = 5 * time.Millisecond
	// rowsAhead is how many there are at the most that the client does not have,
	// so that no log is over before a slow one has looked.
	rowsAhead = 10
)

// streamed marks the rows that come by a stream.
var streamed = time.Unix(1, 0).UTC()

// grow adds rows, and returns how many there are now.
func (s *logServer) grow(by int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows = min(s.rows+by, s.taken+rowsAhead, rowsAll)
	return s.rows
}

// take is told of each row that the client shows.
func (s *logServer) take(row wire.LogRow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = row.Seq
	if s.apart == 0 && row.EmittedAt.Equal(streamed) {
		s.apart = s.ranges
	}
}

func (s *logServer) away() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down != nil && s.down(s)
}

func rowOf(seq int64) wire.LogRow {
	return wire.LogRow{Seq: seq, Stream: provision.Stdout, Text: fmt.Sprintf("line %d\n\"é\"\n", seq)}
}

func (s *logServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	after, _ := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64)
	switch {
	case s.away():
		panic(http.ErrAbortHandler)
	case strings.HasSuffix(r.URL.Path, "/stream"):
		s.count(&s.streams)
		if s.stream == nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		s.stream(s, w, r, after)
	case strings.HasSuffix(r.URL.Path, "/logs"):
		s.count(&s.ranges)
		page := wire.LogPage{Items: []wire.LogRow{}, LastSeq: s.grow(0)}
		for seq := after + 1; seq <= page.LastSeq && len(page.Items) < 7; seq++ {
			page.Items = append(page.Items, rowOf(seq))
		}
		_ = json.NewEncoder(w).Encode(page)
	default:
		s.count(&s.looks)
		p := wire.Provision{ID: anID, Number: 7, Status: provision.Processing}
		if s.grow(4) == rowsAll {
			p.Status = provision.Success
		}
		_ = json.NewEncoder(w).Encode(p)
	}
}

func (s *logServer) count(n *int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*n++
}

// send streams rows as they come: from, from+step, …, at most so many; and ends
// with what is given.
func (s *logServer) send(w http.ResponseWriter, r *http.Request, from, step int64, most int, end string) {
	_, _ = fmt.Fprint(w, "retry: 10\n\nevent: status\ndata: {}\n\n")
	tick := time.NewTicker(rowEvery)
	defer tick.Stop()
	for seq := max(1, from); most > 0 && seq <= rowsAll; {
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
		for there := s.grow(1); seq <= there && most > 0; seq, most = seq+step, most-1 {
			row := rowOf(seq)
			row.EmittedAt = streamed
			data, _ := json.Marshal(row)
			_, _ = fmt.Fprintf(w, "id: %d\nevent: log\ndata: %s\n\n", seq, data)
		}
	}
	_, _ = fmt.Fprint(w, end)
}

// Whatever becomes of the stream, each row is shown once and in its order.
func TestFollowLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	const whole = 1 << 20
	for name, tt := range map[string]struct {
		stream func(s *logServer, w http.ResponseWriter, r *http.Request, after int64)
		down   func(s *logServer) bool
		check  func(s *logServer) bool // whether it was done as it should
		should string
		silent time.Duration
	}{
		"a stream": {stream: func(s *logServer, w http.ResponseWriter, r *http.Request, after int64) {
			s.send(w, r, after+1, 1, whole, "event: end\ndata: {}\n\n")
		}, check: func(s *logServer) bool { return s.streams == 1 && s.apart > 0 && s.ranges-s.apart <= 4 }, should: "one stream, and hardly any other question while it is heard"},
		"no stream": {check: func(s *logServer) bool { return s.streams == 1 }, should: "a stream asked for once"},
		"cut after each few rows": {stream: func(s *logServer, w http.ResponseWriter, r *http.Request, after int64) {
			s.send(w, r, after+1, 1, 5, "")
		}, check: func(s *logServer) bool { return s.streams >= 2 }, should: "streams opened again"},
		"cut within an event": {stream: func(s *logServer, w http.ResponseWriter, r *http.Request, after int64) {
			s.send(w, r, after+1, 1, 5, fmt.Sprintf("id: %d\nevent: log\ndata: {\"seq\": %d, \"te", after+6, after+6))
		}, check: func(s *logServer) bool { return s.streams >= 2 }, should: "streams opened again"},
		"rows left out": {stream: func(s *logServer, w http.ResponseWriter, r *http.Request, after int64) {
			s.send(w, r, after+1, 3, whole, "")
		}, check: func(s *logServer) bool { return s.ranges > 3 }, should: "rows asked for"},
		"rows repeated": {stream: func(s *logServer, w http.ResponseWriter, r *http.Request, after int64) {
			s.send(w, r, after-10, 1, whole, "event: end\ndata: {}\n\n")
		}},
		"kept by a proxy": {stream: func(s *logServer, w http.ResponseWriter, r *http.Request, _ int64) {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, check: func(s *logServer) bool { return s.streams == 1 && s.ranges > 3 }, should: "rows asked for"},
		"silent from some time on": {stream: func(s *logServer, w http.ResponseWriter, r *http.Request, after int64) {
			s.send(w, r, after+1, 1, 10, "")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, check: func(s *logServer) bool { return s.ranges > 3 }, should: "rows asked for", silent: 50 * time.Millisecond},
		"a server that restarts": {stream: func(s *logServer, w http.ResponseWriter, r *http.Request, after int64) {
			s.send(w, r, after+1, 1, 20, "")
		}, down: func(s *logServer) bool {
			if s.rows < rowsAll/2 || s.refused == 10 {
				return false
			}
			s.refused++
			return true
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &logServer{stream: tt.stream, down: tt.down}
			c := asking(t, s.ServeHTTP)
			c.timing = timing{
				retry: time.Millisecond, look: 20 * time.Millisecond, hinted: 5 * time.Millisecond, silent: cmp.Or(tt.silent, time.Minute),
				reopen: time.Millisecond, patience: time.Minute,
			}
			var got []wire.LogRow
			var told int
			p, err := c.Follow(t.Context(), anID, Follower{
				Line: func(row wire.LogRow) error {
					s.take(row)
					row.EmittedAt = time.Time{}
					got = append(got, row)
					return nil
				},
				Stands: func(wire.Provision) error { told++; return nil },
			})
			if err != nil || p.Status != provision.Success || told < 2 {
				t.Errorf("Follow() = %s, %v, told %d times, want SUCCESS", p.Status, err, told)
			}
			for i, row := range got {
				if row != rowOf(int64(i+1)) {
					t.Fatalf("row %d is %+v, want %+v", i+1, row, rowOf(int64(i+1)))
				}
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(got) != rowsAll || tt.check != nil && !tt.check(s) {
				t.Errorf("%d rows by %d streams, %d ranges and %d looks, want %d rows, and %s", len(got), s.streams, s.ranges, s.looks, rowsAll, tt.should)
			}
		})
	}
}

func TestFollowEnds(t *testing.T) {
	t.Parallel()
	s := &logServer{down: func(s *logServer) bool { return s.looks > 0 }}
	c := asking(t, s.ServeHTTP)
	c.timing = timing{retry: time.Millisecond, look: 10 * time.Millisecond, patience: 50 * time.Millisecond}
	_, err := c.Follow(t.Context(), anID, Follower{})
	if _, away := errors.AsType[*problem.UnreachableError](err); !away {
		t.Errorf("Follow() of a server that has gone = %v, want an *UnreachableError", err)
	}
	full := errors.New("the disk is full")
	c = asking(t, (&logServer{}).ServeHTTP)
	if _, err := c.Follow(t.Context(), anID, Follower{Line: func(wire.LogRow) error { return full }}); !errors.Is(err, full) {
		t.Errorf("Follow() = %v, want the follower's error", err)
	}
}

// A run whose agent was lost has ended, and is followed until the server says that nothing
// more is to come. A stream that is cut meanwhile, or a server without one, says nothing.
func TestFollowOfALostRun(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		late    bool
		streams int  // that are opened; the last one says that it is over
		cut     bool // those before are cut
		none    bool // there is no stream
		rows    int64
	}{
		"until nothing more comes":  {late: true, streams: 1, rows: 4},
		"though its stream is cut":  {late: true, streams: 3, cut: true, rows: 4},
		"without a stream":          {late: true, none: true, streams: 1, rows: 1},
		"not where it isn't wanted": {rows: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lost := string(provision.CodeAgentLost)
			var mu sync.Mutex
			streams, rows := 0, int64(1)
			c := asking(t, func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case strings.HasSuffix(r.URL.Path, "/stream") && tt.none:
					streams = 1
					http.NotFound(w, r)
				case strings.HasSuffix(r.URL.Path, "/stream"):
					streams++
					w.Header().Set("Content-Type", "text/event-stream")
					_, _ = fmt.Fprint(w, "retry: 10\n\nevent: status\ndata: {\"unsettled\":true}\n\n")
					if streams == tt.streams {
						for rows < tt.rows {
							rows++
							data, _ := json.Marshal(rowOf(rows))
							_, _ = fmt.Fprintf(w, "id: %d\nevent: log\ndata: %s\n\n", rows, data)
						}
						_, _ = fmt.Fprint(w, "event: end\ndata: {}\n\n")
					}
				case strings.HasSuffix(r.URL.Path, "/logs"):
					after, _ := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64)
					page := wire.LogPage{Items: []wire.LogRow{}, LastSeq: rows}
					for seq := after + 1; seq <= rows; seq++ {
						page.Items = append(page.Items, rowOf(seq))
					}
					_ = json.NewEncoder(w).Encode(page)
				default:
					_ = json.NewEncoder(w).Encode(wire.Provision{ID: anID, Number: 7, Status: provision.Failed, ErrorCode: &lost})
				}
			})
			silent := time.Minute
			if tt.none {
				silent = 50 * time.Millisecond
			}
			c.timing = timing{retry: time.Millisecond, look: 10 * time.Millisecond, hinted: time.Millisecond, silent: silent, reopen: time.Millisecond, patience: time.Minute}
			var got int64
			p, err := c.Follow(t.Context(), anID, Follower{Late: tt.late, Line: func(row wire.LogRow) error { got = row.Seq; return nil }})
			if err != nil || !Lost(p) || got != tt.rows || streams != tt.streams {
				t.Errorf("Follow() = %s, %v after row %d of %d by %d streams, want %d streams", p.Status, err, got, tt.rows, streams, tt.streams)
			}
		})
	}
}
