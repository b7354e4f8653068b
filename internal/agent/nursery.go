package agent

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/process"
)

// sweepLimit bounds how long the end of killed processes is waited for.
const sweepLimit = 30 * time.Second

// nursery knows which children live. Whatever else is a child of this process
// fell to it, the subreaper, when one of them died, and is to end as well.
type nursery struct {
	spared map[process.Info]bool
	mu     sync.Mutex
	living map[int]bool
}

// newNursery spares what is there already: a shell may have started something
// beside us before it became this program.
func newNursery() (*nursery, error) {
	n := &nursery{spared: map[process.Info]bool{}, living: map[int]bool{}}
	there, err := process.Descendants(os.Getpid())
	if err != nil {
		return nil, fmt.Errorf("look for child processes: %w", err)
	}
	for _, p := range there {
		n.spared[identity(p)] = true
	}
	return n, nil
}

// start starts a child. No sweep sees a child that is not in the list yet: keep
// waits for the lock that is held here.
func (n *nursery) start(cmd *exec.Cmd) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	n.living[cmd.Process.Pid] = true
	return nil
}

// wait waits for a child's end. How it ended is in cmd.ProcessState.
func (n *nursery) wait(cmd *exec.Cmd) {
	_ = cmd.Wait() // an exit code that is not 0 is for the run to explain
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.living, cmd.Process.Pid)
}

// identity is what of a process stays the same and is never used again.
func identity(p process.Info) process.Info { return process.Info{PID: p.PID, Started: p.Started} }

func (n *nursery) keep(p process.Info) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.living[p.PID] || n.spared[identity(p)]
}

// sweep ends what dead children left running.
func (n *nursery) sweep() error {
	ctx, cancel := context.WithTimeout(context.Background(), sweepLimit)
	defer cancel()
	return process.KillDescendants(ctx, n.keep)
}
