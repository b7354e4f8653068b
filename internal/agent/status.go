package agent

import (
	"errors"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Status is how an agent is at the moment.
type Status struct {
	// Slots is how many provisions run at once at most, Busy how many slots are
	// taken, by runs or by what an earlier boot has left.
	Slots, Busy int
	// LogLag is how long the oldest line has waited that the database does not
	// have; 0 when none waits.
	LogLag time.Duration
	// SpoolBytes is the room that spools take on the disk.
	SpoolBytes int64
}

// status is what is known of an agent at any time.
type status struct {
	spools atomic.Pointer[dataDir]
	busy   atomic.Int64

	mu       sync.Mutex
	watching map[*watch]struct{} // a delivery each
}

func (s *status) begin(w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watching == nil {
		s.watching = map[*watch]struct{}{}
	}
	s.watching[w] = struct{}{}
}

func (s *status) end(w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watching, w)
}

// lag is how long the oldest line has waited, of all deliveries.
func (s *status) lag() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lag time.Duration
	for w := range s.watching {
		if since := w.oldest.Load(); since != 0 {
			lag = max(lag, time.Since(time.Unix(0, since)))
		}
	}
	return lag
}

// spooled is how much room the spools take. A file that goes meanwhile takes
// none.
func (s *status) spooled() int64 {
	d := s.spools.Load()
	if d == nil {
		return 0
	}
	entries, err := os.ReadDir(d.path("spool"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	var bytes int64
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil {
			bytes += onDisk(info)
		}
	}
	return bytes
}

// onDisk is how many bytes of the disk a file takes: more than its length where
// room is kept behind its end, less where it has holes.
func onDisk(info fs.FileInfo) int64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Blocks * 512
	}
	return info.Size()
}
