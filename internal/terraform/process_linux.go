package terraform

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// newestChild returns the process that the calling thread started last, or 0
// where the kernel does not list children. terraform-exec keeps the number to
// itself.
func newestChild() int {
	list, err := os.ReadFile("/proc/thread-self/children")
	if err != nil {
		return 0
	}
	children := strings.Fields(string(list))
	if len(children) == 0 {
		return 0
	}
	pid, err := strconv.Atoi(children[len(children)-1])
	if err != nil {
		return 0
	}
	return pid
}

// openStderr opens the read end of the pipe that is a process's stderr.
func openStderr(pid int) (io.ReadCloser, error) {
	return os.Open(fmt.Sprintf("/proc/%d/fd/2", pid))
}

// stragglerDelay is how long output may stay open after the engine's end.
const stragglerDelay = 2 * time.Second

// watcher tells when the engine has ended but its output is still held.
type watcher struct {
	stragglers func()
	stopped    chan struct{}
	wait       sync.WaitGroup
}

func (w *watcher) start(pid int) {
	if pid == 0 || w.stragglers == nil {
		return
	}
	w.stopped = make(chan struct{})
	w.wait.Go(func() {
		// WNOWAIT leaves the dead process for terraform-exec to reap, which
		// it does when its output is closed.
		for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		}
		delay := time.NewTimer(stragglerDelay)
		defer delay.Stop()
		select {
		case <-delay.C:
			w.stragglers()
		case <-w.stopped:
		}
	})
}

// stop is called when terraform-exec has returned: the engine is reaped.
func (w *watcher) stop() {
	if w.stopped != nil {
		close(w.stopped)
	}
	w.wait.Wait()
}
