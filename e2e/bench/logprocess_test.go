package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/process"

	"github.com/tendril-run/tendril/e2e/site"
)

// tick is the unit of times in /proc: USER_HZ is 100 on every Linux.
const tick = 10 * time.Millisecond

// usage is processor time of a process, and that of its children which have ended.
type usage struct{ own, children time.Duration }

func usageOf(b *testing.B, pid int) usage {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), ") ") // the name may hold anything
	fields := strings.Fields(after)
	ticks := func(i int) time.Duration {
		n, err := strconv.Atoi(fields[i])
		if err != nil {
			b.Fatal(err)
		}
		return time.Duration(n) * tick
	}
	return usage{ticks(11) + ticks(12), ticks(13) + ticks(14)}
}

// usageBelow is the processor time of a process and of all it has started.
func usageBelow(b *testing.B, pid int) time.Duration {
	b.Helper()
	below, err := process.Descendants(pid)
	if err != nil {
		b.Fatal(err)
	}
	u := usageOf(b, pid)
	sum := u.own + u.children
	for _, p := range below {
		if process.Alive(p.PID) {
			u := usageOf(b, p.PID)
			sum += u.own + u.children
		}
	}
	return sum
}

// isRun reports whether a process is a run's. Between fork and exec it is still
// as large as the agent.
func isRun(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.Contains(string(line), "\x00exec\x00")
}

// watchChildren looks at the memory of an agent's children, not at that of
// engines, until stop is called, which answers the largest. The kernel keeps
// the peaks, so only what one takes at its very end can be missed.
func watchChildren(agent int) (stop func() int64) {
	var most int64
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			below, err := process.Descendants(agent)
			if err != nil {
				return // the agent has ended
			}
			for _, p := range below {
				if p.Parent == agent && isRun(p.PID) {
					most = max(most, site.PeakMemory(p.PID))
				}
			}
			select {
			case <-over:
				return
			case <-time.After(50 * time.Millisecond): // between two looks
			}
		}
	})
	return sync.OnceValue(func() int64 {
		close(over)
		watching.Wait()
		return most
	})
}
