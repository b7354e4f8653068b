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

// children knows which children live. Whatever else is a child of this process
// fell to it, the subreaper, when one of them died, and is to end as well.
type children struct {
	spared map[process.Info]bool
	mu     sync.Mutex
	living map[int]bool
}

// newChildren spares what is there already: a shell may have started something
// in this process before it became this program.
func newChildren() (*children, error) {
	c := &children{spared: map[process.Info]bool{}, living: map[int]bool{}}
	there, err := process.Descendants(os.Getpid())
	if err != nil {
		return nil, fmt.Errorf("look for child processes: %w", err)
	}
	for _, p := range there {
		c.spared[lifeOf(p)] = true
	}
	return c, nil
}

// start starts a child. No sweep sees a child that is not in the list yet: keep
// waits for the lock that is held here.
func (c *children) start(cmd *exec.Cmd) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	c.living[cmd.Process.Pid] = true
	return nil
}

// wait waits for a child's end. How it ended is in cmd.ProcessState.
func (c *children) wait(cmd *exec.Cmd) {
	_ = cmd.Wait() // an exit code that is not 0 is for the run to explain
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.living, cmd.Process.Pid)
}

// lifeOf is what of a process stays the same and is never used again.
func lifeOf(p process.Info) process.Info { return process.Info{PID: p.PID, Started: p.Started} }

func (c *children) keep(p process.Info) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.living[p.PID] || c.spared[lifeOf(p)]
}

// sweep ends what dead children left running.
func (c *children) sweep() error {
	ctx, cancel := context.WithTimeout(context.Background(), sweepLimit)
	defer cancel()
	return process.KillDescendants(ctx, c.keep)
}
