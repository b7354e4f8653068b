package queuetest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/delivery"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/spool"
)

const (
	// SlowRate is what a slow link carries, in bytes a second.
	SlowRate = 16 << 10
	// slowRuns is how many runs share it, and slowLog what each has to say.
	slowRuns, slowLog = 8, 96 << 10
	// silence is the longest that a run may deliver nothing.
	silence   = 30 * time.Second
	slowLease = 20 * time.Second
)

// SlowLink holds a transport to what an agent may count on over a link of SlowRate:
// while eight runs have more to say than it carries, heartbeats keep their leases
// alive, each run delivers at least every 30 seconds, and each one's end arrives.
// narrow makes the link slow, once everything is claimed.
func SlowLink(t *testing.T, w *World, q queue.Queue, narrow func()) {
	t.Helper()
	if _, err := w.Conn.Exec(t.Context(), "UPDATE tendril.settings SET lease = $1, heartbeat = '2 s'", slowLease); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	var claims, provisions []uuid.UUID
	for i := range slowRuns {
		provisions = append(provisions, w.Deploy(t, fmt.Sprintf("w%d", i)))
		claims = append(claims, mustClaim(t, q).ClaimID)
	}
	narrow()

	beating, stop := context.WithCancel(t.Context())
	var beats sync.WaitGroup
	beats.Go(func() { beat(beating, t, q, claims) })
	defer beats.Wait()
	defer stop()

	var runs sync.WaitGroup
	for i, claim := range claims {
		file := noisySpool(t, i)
		runs.Go(func() {
			heard := &storedTimes{last: time.Now()}
			dead := make(chan struct{})
			close(dead)
			got, err := delivery.NewPump(q, claim, file, delivery.PumpOptions{
				Observer: heard, OnRetry: func(err error) { t.Logf("run %d: %v", i, err) },
			}).Run(t.Context(), nil, dead)
			if err != nil || got.Result == nil || got.Result.Status != provision.Success {
				t.Errorf("run %d ended with %+v, %v, want SUCCESS", i, got.Result, err)
			}
			if longest := heard.longest(); longest > silence {
				t.Errorf("run %d delivered nothing for %s, want %s at most", i, longest.Round(time.Second), silence)
			}
		})
	}
	runs.Wait()
	for i, id := range provisions {
		if got := len(w.Log(t, id)); got != slowLog {
			t.Errorf("run %d: %d bytes of log are stored, want %d", i, got, slowLog)
		}
	}
}

// beat sends heartbeats until ctx ends. Each must be answered well within a lease.
func beat(ctx context.Context, t *testing.T, q queue.Queue, claims []uuid.UUID) {
	for last := time.Now(); ; last = time.Now() {
		_, err := q.Heartbeat(ctx, queue.Beat{Claims: claims})
		if ctx.Err() != nil {
			return
		}
		if took := time.Since(last); err != nil || took > slowLease/2 {
			t.Errorf("Heartbeat() = %v after %s, want leases of %s renewed in time", err, took, slowLease)
		}
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Second): // as the database advises
		}
	}
}

// noisySpool is what a run has said: slowLog bytes, and that it has ended well.
func noisySpool(t *testing.T, run int) *os.File {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(t.TempDir(), "spool"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	writer := spool.NewWriter(file, nil)
	line := append(bytes.Repeat([]byte{'a' + byte(run)}, 127), '\n')
	if _, err := writer.Stream(provision.Stdout).Write(bytes.Repeat(line, slowLog/len(line))); err != nil {
		t.Fatal(err)
	}
	if err := writer.Update(provision.Report{Status: provision.Success}); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	return file
}

// storedTimes is a delivery.Observer that notes the longest silence.
type storedTimes struct {
	mu   sync.Mutex
	last time.Time
	most time.Duration
}

func (s *storedTimes) Stored(int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.most, s.last = max(s.most, time.Since(s.last)), time.Now()
}

func (s *storedTimes) Reported(provision.Report, time.Time) { s.Stored(0) }
func (s *storedTimes) Heard(provision.Report, time.Time)    {}
func (s *storedTimes) Turns(time.Duration)                  {}
func (s *storedTimes) Waits(time.Time)                      {}
func (s *storedTimes) SetAside(string)                      {}

func (s *storedTimes) longest() time.Duration {
	s.Stored(0)
	return s.most
}
