package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/process"
)

// peaks is the most that was seen of an agent, in bytes.
type peaks struct {
	agent int64 // resident memory of its process
	child int64 // and of a run's process, not of the engine
	spool int64 // the files of its spool directory together
}

func (p peaks) String() string {
	return fmt.Sprintf("agent %d MB, child %d MB, spool %d MB", p.agent>>20, p.child>>20, p.spool>>20)
}

// watch looks at an agent again and again until stop is called, which answers
// the peaks. The kernel keeps memory's peaks, so between two looks only what a
// process took at its very end can be missed.
func watch(a *site.Agent) (stop func() peaks) {
	var p peaks
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			p.look(a)
			select {
			case <-over:
				return
			case <-time.After(10 * time.Millisecond): // between two looks
			}
		}
	})
	return sync.OnceValue(func() peaks {
		close(over)
		watching.Wait()
		return p
	})
}

func (p *peaks) look(a *site.Agent) {
	pid := a.Cmd.Process.Pid
	p.agent = max(p.agent, site.PeakMemory(pid))
	below, err := process.Descendants(pid)
	if err != nil {
		return // the agent has ended
	}
	for _, child := range below {
		if child.Parent == pid {
			p.child = max(p.child, site.PeakMemory(child.PID))
		}
	}
	files, _ := filepath.Glob(filepath.Join(a.Dir, "spool", "*")) // the pattern is well formed
	var spool int64
	for _, file := range files {
		if info, err := os.Stat(file); err == nil {
			spool += info.Size()
		}
	}
	p.spool = max(p.spool, spool)
}
