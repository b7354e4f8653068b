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

// Now is how an agent is at the moment.
type Now struct {
	// Slots is how many provisions run at once at most, Busy how many slots are
	// taken, by runs or by what an earlier boot has left.
	Slots, Busy int
	// LogLag is how long the oldest line has waited that the database does not
	// have; 0 when none waits.
	LogLag time.Duration
	// SpoolBytes is the room that spools take on the disk.
	SpoolBytes int64
}

// Now may be called at any time, by several goroutines.
func (a *Agent) Now() Now {
	return Now{Slots: a.options.Slots, Busy: int(a.now.busy.Load()), LogLag: a.now.lag(), SpoolBytes: a.now.spooled()}
}

// now is what is known of an agent at any time.
type now struct {
	spools atomic.Pointer[dataDir]
	busy   atomic.Int64

	mu       sync.Mutex
	watching map[*watch]struct{} // a delivery each
}

func (n *now) begin(w *watch) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.watching == nil {
		n.watching = map[*watch]struct{}{}
	}
	n.watching[w] = struct{}{}
}

func (n *now) end(w *watch) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.watching, w)
}

// lag is how long the oldest line has waited, of all deliveries.
func (n *now) lag() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	var lag time.Duration
	for w := range n.watching {
		if since := w.oldest.Load(); since != 0 {
			lag = max(lag, time.Since(time.Unix(0, since)))
		}
	}
	return lag
}

// spooled is how much room the spools take. A file that goes meanwhile takes
// none.
func (n *now) spooled() int64 {
	d := n.spools.Load()
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
// room is set aside, less where it has holes.
func onDisk(info fs.FileInfo) int64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Blocks * 512
	}
	return info.Size()
}
