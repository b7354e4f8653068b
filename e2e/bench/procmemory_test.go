package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/process"
)

// mb is a number of bytes for people.
func mb(n int64) float64 { return float64(n) / 1e6 }

// memory is what the kernel says of a process, in bytes.
type memory struct {
	resident  int64
	anonymous int64 // of it, what is not a file's
	peak      int64 // of resident
	threads   int64
}

// memoryOf looks at a process; all is 0 of one that is not there.
func memoryOf(pid int) memory {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return memory{}
	}
	number := func(key string) int64 {
		_, after, _ := strings.Cut(string(text), "\n"+key+":")
		fields := strings.Fields(after)
		if len(fields) == 0 {
			return 0 // a zombie has none
		}
		n, _ := strconv.ParseInt(fields[0], 10, 64) // the kernel's
		return n
	}
	return memory{
		resident: number("VmRSS") << 10, anonymous: number("RssAnon") << 10,
		peak: number("VmHWM") << 10, threads: number("Threads"),
	}
}

// report reports a process's memory under names with the prefix.
func (m memory) report(b *testing.B, prefix string) {
	b.Helper()
	b.ReportMetric(mb(m.resident), prefix+"rss-MB")
	b.ReportMetric(mb(m.anonymous), prefix+"anon-MB")
}

// ticksPerSecond is in what unit the kernel tells of a process's time: USER_HZ,
// which is the same on all that Go runs on.
const ticksPerSecond = 100

// cpuOf is the time for which a process has computed.
func cpuOf(b *testing.B, pid int) time.Duration {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	// Fields are counted from behind the name, which may hold anything.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	if err := errors.Join(err1, err2); err != nil {
		b.Fatal(err)
	}
	return time.Duration(user+system) * (time.Second / ticksPerSecond)
}

// watchChild looks at a process's one child again and again until stop is
// called, which answers the most resident memory that the child has had. The
// kernel keeps the peak, so only what comes after the last look is missed.
func watchChild(pid int) (stop func() int64) {
	var most int64
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			below, _ := process.Descendants(pid) // none when the process has ended
			for _, child := range below {
				if child.Parent == pid {
					most = max(most, memoryOf(child.PID).peak)
				}
			}
			select {
			case <-over:
				return
			case <-time.After(5 * time.Millisecond): // between two looks
			}
		}
	})
	return func() int64 {
		close(over)
		watching.Wait()
		return most
	}
}

// program builds a program of testdata as what ships is built.
func program(b *testing.B, name string) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), name)
	build := exec.CommandContext(b.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "./testdata/"+name)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return path
}

func sizeOf(b *testing.B, path string) int64 {
	b.Helper()
	info, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	return info.Size()
}
