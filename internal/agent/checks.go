package agent

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/machinehealth"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// checksAtOnce is how many machines are asked at a time: few, for runs go first.
const checksAtOnce = 32

// checkPurpose separates checks from all else that an identity authenticates.
const checkPurpose = "machine health check"

// signChecks authenticates the checks of a report's machines. They come from a run of that
// workspace, by the spool that only this agent's child has written to.
func (k *keys) signChecks(workspace uuid.UUID, listed []provision.Machine) []provision.Machine {
	by := k.makers()
	if len(by) == 0 || !slices.ContainsFunc(listed, func(m provision.Machine) bool { return m.Check != nil }) {
		return listed
	}
	listed = slices.Clone(listed)
	for i, m := range listed {
		if m.Check != nil {
			check := *m.Check
			check.MAC = by.Sign(checkPurpose, check.Message(workspace, m.Name))
			listed[i].Check = &check
		}
	}
	return listed
}

// checker does the health checks that are due, when a heartbeat has said that some are.
type checker struct {
	queue  queue.Queue
	keys   *keys
	ranges machinehealth.Ranges
	log    *slog.Logger
	due    chan struct{}
}

func (b *boot) newChecker() *checker {
	return &checker{queue: b.queue, keys: b.keys, ranges: b.options.Settings.Policy.CheckRanges, log: b.log, due: make(chan struct{}, 1)}
}

// wake has checks done soon.
func (c *checker) wake() {
	select {
	case c.due <- struct{}{}:
	default:
	}
}

// run does checks until ctx ends.
func (c *checker) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.due:
		}
		for ctx.Err() == nil {
			checks, err := c.queue.LeaseChecks(ctx)
			if err != nil && ctx.Err() == nil {
				c.log.Warn("the checks of machines that are due could not be read; the next heartbeat tries again", "error", err)
			}
			if len(checks) == 0 {
				break
			}
			c.do(ctx, checks)
		}
	}
}

// reportEvery is how long a result waits for others at most.
const reportEvery = time.Second

// do does checks, and reports in batches. One that takes long holds up no other's report.
func (c *checker) do(ctx context.Context, checks []queue.MachineCheck) {
	results := make(chan queue.CheckResult)
	var asking sync.WaitGroup
	room := make(chan struct{}, checksAtOnce)
	asking.Go(func() {
		for _, check := range checks {
			room <- struct{}{}
			asking.Go(func() {
				defer func() { <-room }()
				results <- c.ask(ctx, check)
			})
		}
	})
	var closing sync.WaitGroup
	closing.Go(func() {
		asking.Wait()
		close(results)
	})
	defer closing.Wait()
	var batch []queue.CheckResult
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for open := true; open; {
		select {
		case result, more := <-results:
			if open = more; more {
				batch = append(batch, result)
			}
		case <-tick.C:
			c.report(ctx, batch)
			batch = nil
		}
	}
	c.report(ctx, batch)
}

func (c *checker) report(ctx context.Context, batch []queue.CheckResult) {
	if len(batch) == 0 || ctx.Err() != nil {
		return // another agent asks again
	}
	if err := c.queue.ReportChecks(ctx, batch); err != nil && ctx.Err() == nil {
		c.log.Warn("what checks of machines have found could not be reported; they are done again", "results", len(batch), "error", err)
	}
}

// ask does one check, if an agent of this cluster has authenticated it.
func (c *checker) ask(ctx context.Context, due queue.MachineCheck) queue.CheckResult {
	result := queue.CheckResult{Machine: due.Machine, Result: provision.HealthUnknown, Why: "the check is not one that a run of this cluster has asked for; deploy again"}
	if c.keys.held().Verify(checkPurpose, due.Check.Message(due.Workspace, due.Name), due.Check.MAC) {
		result.Result, result.Why = machinehealth.Check(ctx, due.Check, c.ranges)
	} else {
		c.log.Warn("a health check is refused: nobody of this cluster has authenticated it", "machine", due.Name, "workspace", due.Workspace)
	}
	result.Why = strings.Join(strings.Fields(printable.Text(result.Why)), " ")
	return result
}
