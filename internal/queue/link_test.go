package queue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tendril-run/tendril/internal/postgrest"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// line is a link of some bandwidth, which calls share by packets, and latency.
type line struct {
	rate    int // bytes a second
	latency time.Duration
	limit   time.Duration // of a call

	mu     sync.Mutex
	free   time.Time
	flying int
	most   int // calls at once
}

// packet is what one call sends before it is the next one's turn: a millisecond's
// worth where that is more, for the sake of the test's time.
func (l *line) packet() int { return max(1<<10, l.rate/1000) }

// carry takes as long as a call of so many bytes does.
func (l *line) carry(bytes int) error {
	l.mu.Lock()
	l.flying++
	l.most = max(l.most, l.flying)
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.flying--
		l.mu.Unlock()
	}()
	began := time.Now()
	for packet := l.packet(); bytes > 0; bytes -= packet {
		l.mu.Lock()
		if now := time.Now(); l.free.Before(now) {
			l.free = now
		}
		l.free = l.free.Add(time.Second * time.Duration(min(bytes, packet)) / time.Duration(l.rate))
		through := l.free
		l.mu.Unlock()
		time.Sleep(time.Until(through)) // of the bubble
		if time.Since(began) > l.limit {
			return &queue.Error{Kind: queue.Unavailable, Message: "no answer in time", Err: context.DeadlineExceeded}
		}
	}
	time.Sleep(l.latency)
	return nil
}

func chunksOf(bytes int) []provision.LogChunk {
	chunk := provision.LogChunk{Stream: provision.Stdout, Text: strings.Repeat("x", provision.ChunkTarget)}
	var chunks []provision.LogChunk
	for range bytes / len(chunk.Text) {
		chunks = append(chunks, chunk)
	}
	return chunks
}

func bytesOf(chunks []provision.LogChunk) (n int) {
	for _, c := range chunks {
		n += len(c.Text)
	}
	return n
}

// flood has runs send as much as they can for so long, and returns the longest that
// one of them delivered nothing, and the bytes that all delivered.
func flood(t *testing.T, l *queue.Link, way *line, runs int, lasts time.Duration) (silence time.Duration, sent int64) {
	t.Helper()
	var total atomic.Int64
	silences := make([]time.Duration, runs)
	end := time.Now().Add(lasts)
	var group sync.WaitGroup
	for i := range runs {
		group.Go(func() {
			chunks := chunksOf(provision.MaxBatch)
			for last := time.Now(); time.Now().Before(end); {
				n := 0
				_, err := l.AppendLog(t.Context(), chunks, func(part []provision.LogChunk) (int64, error) {
					n = bytesOf(part)
					return 0, way.carry(n)
				})
				if err == nil {
					total.Add(int64(n))
					silences[i], last = max(silences[i], time.Since(last)), time.Now()
				}
			}
		})
	}
	group.Wait()
	for _, s := range silences {
		silence = max(silence, s)
	}
	return silence, total.Load()
}

func TestEachRunDeliversInTimeWhateverTheLink(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		rate, runs int
		latency    time.Duration
		share      float64 // of the rate that is used, at least
	}{
		"16 KB/s":            {rate: 16 << 10, runs: 8, share: 0.9},
		"16 KB/s, one run":   {rate: 16 << 10, runs: 1, share: 0.9},
		"100 KB/s":           {rate: 100 << 10, runs: 5, share: 0.9},
		"100 KB/s, far away": {rate: 100 << 10, runs: 5, latency: 600 * time.Millisecond, share: 0.4},
		"1 MB/s":             {rate: 1 << 20, runs: 8, share: 0.9},
		"1 MB/s, far away":   {rate: 1 << 20, runs: 8, latency: 300 * time.Millisecond, share: 0.4},
		"100 MB/s":           {rate: 100 << 20, runs: 8, share: 0.9},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				way := &line{rate: tt.rate, latency: tt.latency, limit: 15 * time.Second}
				lasts := 10 * time.Minute
				if tt.rate > 10<<20 {
					lasts = 20 * time.Second
				}
				silence, sent := flood(t, queue.NewLink(3), way, tt.runs, lasts)
				if silence > 30*time.Second {
					t.Errorf("a run delivered nothing for %s, want 30 s at most", silence)
				}
				if share := float64(sent) / lasts.Seconds() / float64(tt.rate); share < tt.share {
					t.Errorf("%.0f %% of the link are used, want %.0f", 100*share, 100*tt.share)
				}
			})
		})
	}
}

// Over a link that is slow there is one full call at a time; over one that has
// shown that it takes whole batches quickly there are several.
func TestOneFullCallAtATime(t *testing.T) {
	t.Parallel()
	for rate, want := range map[int]int{16 << 10: 1, 100 << 10: 1, 100 << 20: 3} {
		synctest.Test(t, func(t *testing.T) {
			way := &line{rate: rate, limit: 15 * time.Second}
			flood(t, queue.NewLink(3), way, 8, 30*time.Second)
			if way.most != want {
				t.Errorf("%d calls at once over %d bytes a second, want %d", way.most, rate, want)
			}
		})
	}
}

// A link that turns slow while whole batches are on their way: each time-out halves
// what is sent at once, and before long every run delivers again.
func TestLinkThatTurnsSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, way := queue.NewLink(3), &line{rate: 100 << 20, limit: 15 * time.Second}
		flood(t, l, way, 8, 5*time.Second)
		way.mu.Lock()
		way.rate = 16 << 10
		way.mu.Unlock()
		if silence, _ := flood(t, l, way, 8, 10*time.Minute); silence > time.Minute {
			t.Errorf("a run delivered nothing for %s after the link had turned slow, want a minute at most", silence)
		}
		if silence, _ := flood(t, l, way, 8, 10*time.Minute); silence > 30*time.Second {
			t.Errorf("a run delivered nothing for %s, want 30 s at most", silence)
		}
		way.mu.Lock()
		way.rate = 100 << 20
		way.mu.Unlock()
		flood(t, l, way, 8, 20*time.Second)
		if _, sent := flood(t, l, way, 8, 5*time.Second); sent < 5*90<<20 {
			t.Errorf("%d MB in 5 s over a link that is fast again, want 90 a second", sent>>20)
		}
	})
}

// A call is never less than one chunk, and never more than was refused.
func TestSizesOfCalls(t *testing.T) {
	t.Parallel()
	timeOut := &queue.Error{Kind: queue.Unavailable, Err: context.DeadlineExceeded}
	for name, tt := range map[string]struct {
		fails       func(bytes int) error
		least, most int // of calls in the end, in chunks
	}{
		"nothing gets through": {func(int) error { return timeOut }, 1, 1},
		"a proxy refuses": {func(n int) error {
			if n > 100_000 {
				return &queue.Error{Kind: queue.Refused, Reason: postgrest.BodyTooLarge}
			}
			return nil
		}, 4, 9},
		"a proxy hangs up": {func(n int) error {
			if n > 100_000 {
				return &queue.Error{Kind: queue.Unavailable, Err: syscall.ECONNRESET}
			}
			return nil
		}, 3, 13},
		"the statement is cancelled": {func(n int) error {
			if n > 200_000 {
				return &queue.Error{Kind: queue.Unavailable, Code: "57014"}
			}
			return nil
		}, 6, 26},
		"the database refuses": {func(int) error { return &queue.Error{Kind: queue.Refused, Code: "PT422"} }, 6, 6},
		"the database is busy": {func(int) error { return &queue.Error{Kind: queue.Unavailable, Code: "PT503"} }, 6, 6},
		"nothing fails":        {func(int) error { return nil }, 50, 51},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := queue.NewLink(3)
			chunks := chunksOf(provision.MaxBatch)
			for i := range 100 {
				_, _ = l.AppendLog(t.Context(), chunks, func(part []provision.LogChunk) (int64, error) {
					if i >= 50 && (len(part) < tt.least || len(part) > tt.most) {
						t.Errorf("call %d has %d chunks, want %d to %d", i, len(part), tt.least, tt.most)
					}
					return 0, tt.fails(bytesOf(part))
				})
			}
		})
	}
}

// A state goes before lines that have waited longer.
func TestStatesGoFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := queue.NewLink(3)
		hold := make(chan struct{})
		var order []string
		var mu sync.Mutex
		note := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, what)
		}
		for i := range 3 {
			go func() {
				_, _ = l.AppendLog(t.Context(), chunksOf(provision.MaxBatch), func([]provision.LogChunk) (int64, error) {
					note(fmt.Sprintf("lines %d", i))
					<-hold
					return 0, nil
				})
			}()
			synctest.Wait()
		}
		go func() {
			_ = l.PutBlob(t.Context(), queue.BlobState, make([]byte, 1000), func(int, int, string) error {
				note("state")
				return nil
			})
		}()
		synctest.Wait()
		close(hold)
		synctest.Wait()
		if got, want := strings.Join(order, ", "), "lines 0, state, lines 1, lines 2"; got != want {
			t.Errorf("calls = %s, want %s", got, want)
		}
	})
}

// Who gives up while waiting for a turn leaves it to others.
func TestGivingUpATurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := queue.NewLink(3)
		hold := make(chan struct{})
		send := func([]provision.LogChunk) (int64, error) { <-hold; return 1, nil }
		go func() { _, _ = l.AppendLog(t.Context(), chunksOf(provision.MaxBatch), send) }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := make(chan error, 1)
		go func() {
			_, err := l.AppendLog(ctx, chunksOf(provision.MaxBatch), send)
			gaveUp <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-gaveUp; !errors.Is(err, context.Canceled) {
			t.Errorf("AppendLog() = %v, want %v", err, context.Canceled)
		}
		close(hold)
		if next, err := l.AppendLog(t.Context(), chunksOf(provision.MaxBatch), send); next != 1 || err != nil {
			t.Errorf("AppendLog() = %d, %v after another one gave up", next, err)
		}
	})
}

// A blob goes in parts as the link takes them, and in as many as the database does.
func TestPartsOfABlob(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kind         string
		bytes, parts int
	}{
		{queue.BlobState, 0, 1},
		{queue.BlobState, 10_000, 1},
		{queue.BlobState, 480 << 10, 10},
		{queue.BlobPlan, 8 << 20, 16},
		{queue.BlobState, 64 << 20, 513},
	} {
		t.Run(fmt.Sprint(tt.kind, tt.bytes), func(t *testing.T) {
			t.Parallel()
			calls, data := 0, make([]byte, tt.bytes)
			err := queue.NewLink(3).PutBlob(t.Context(), tt.kind, data, func(part, parts int, _ string) error {
				if calls++; part != calls || parts != tt.parts {
					t.Errorf("part %d of %d, want %d of %d", part, parts, calls, tt.parts)
				}
				return nil
			})
			if err != nil || calls != tt.parts {
				t.Errorf("PutBlob() = %v after %d parts, want %d", err, calls, tt.parts)
			}
		})
	}
}
