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
const checksAtOnce = 64

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
			check.Timeout = min(check.Timeout, 30) // as templates may have
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

	// asked is when each machine was asked last, so that no row has one asked more often
	// than the run wanted that asked for the check.
	mu    sync.Mutex
	asked map[string]time.Time
}

func (b *boot) newChecker() *checker {
	return &checker{
		queue: b.queue, keys: b.keys, ranges: b.options.Settings.Policy.CheckRanges, log: b.log,
		due: make(chan struct{}, 1), asked: map[string]time.Time{},
	}
}

// wake has checks done soon.
func (c *checker) wake() {
	select {
	case c.due <- struct{}{}:
	default:
	}
}

// run does checks until ctx ends. It takes only as many as there is room for, so that one
// that takes long holds up no other, and another agent does what this one can't.
func (c *checker) run(ctx context.Context) {
	results := make(chan queue.CheckResult, checksAtOnce)
	var working sync.WaitGroup
	working.Go(func() { c.reports(ctx, results) })
	room := make(chan struct{}, checksAtOnce)
	var asking sync.WaitGroup
	defer working.Wait()
	defer close(results)
	defer asking.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.due:
		}
		for ctx.Err() == nil {
			room <- struct{}{} // until one ends
			most := checksAtOnce - len(room) + 1
			<-room
			checks, err := c.queue.LeaseChecks(ctx, most)
			if err != nil && ctx.Err() == nil {
				c.log.Warn("the checks of machines that are due could not be read; the next heartbeat tries again", "error", err)
			}
			if len(checks) == 0 {
				break
			}
			for _, check := range checks[:min(len(checks), most)] {
				room <- struct{}{}
				asking.Go(func() {
					defer func() { <-room }()
					if result, asked := c.ask(ctx, check); asked {
						results <- result
					}
				})
			}
		}
	}
}

// reportEvery is how long a result waits for others at most.
const reportEvery = time.Second

// reports reports results in batches, until there are no more.
func (c *checker) reports(ctx context.Context, results <-chan queue.CheckResult) {
	var batch []queue.CheckResult
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		select {
		case result, more := <-results:
			if more {
				batch = append(batch, result)
			}
			if !more || len(batch) == queue.MaxChecks {
				c.report(ctx, batch)
				batch = nil
			}
			if !more {
				return
			}
		case <-tick.C:
			c.report(ctx, batch)
			batch = nil
		}
	}
}

func (c *checker) report(ctx context.Context, batch []queue.CheckResult) {
	if len(batch) == 0 || ctx.Err() != nil {
		return // another agent asks again
	}
	if err := c.queue.ReportChecks(ctx, batch); err != nil && ctx.Err() == nil {
		c.log.Warn("what checks of machines have found could not be reported; they are done again", "results", len(batch), "error", err)
	}
}

// ask does one check, if an agent of this cluster has authenticated it; false where it was
// asked a moment ago, which the row should know.
func (c *checker) ask(ctx context.Context, due queue.MachineCheck) (queue.CheckResult, bool) {
	result := queue.CheckResult{Machine: due.Machine, Result: provision.HealthUnknown, Why: "the check is not one that a run of this cluster has asked for; deploy again"}
	switch {
	case !c.keys.held().Verify(checkPurpose, due.Check.Message(due.Workspace, due.Name), due.Check.MAC):
		c.log.Warn("a health check is refused: nobody of this cluster has authenticated it", "machine", due.Name, "workspace", due.Workspace)
	case !c.mayAsk(due, time.Now()):
		return result, false
	default:
		result.Result, result.Why = machinehealth.Check(ctx, due.Check, c.ranges)
	}
	if result.Why = strings.Join(strings.Fields(printable.Text(result.Why)), " "); len(result.Why) > longestWhy {
		result.Why = strings.ToValidUTF8(result.Why[:longestWhy], "")
	}
	return result, true
}

// longestWhy is how many bytes of a reason are reported.
const longestWhy = 600

// mostAsked is of how many machines it is remembered when they were asked.
const mostAsked = 100_000

// mayAsk reports whether a machine may be asked again: after half of its interval, for two
// clocks are never the same.
func (c *checker) mayAsk(due queue.MachineCheck, now time.Time) bool {
	key, interval := due.Workspace.String()+" "+due.Name, time.Duration(due.Check.Interval)*time.Second
	c.mu.Lock()
	defer c.mu.Unlock()
	if last, known := c.asked[key]; known && now.Sub(last) < interval/2 {
		return false
	}
	if len(c.asked) >= mostAsked {
		clear(c.asked)
	}
	c.asked[key] = now
	return true
}
