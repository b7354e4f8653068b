package agent

import (
	"context"
	"fmt"
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

// What goes on at a time: few, for runs go first.
const (
	// checksAtOnce is how many machines are asked but for those by a command.
	checksAtOnce = 64
	// commandsAtOnce is how many are asked by a command, each of which is a process.
	commandsAtOnce = 2
	// workspaceShare is how many of a workspace's machines may be asked before it gets no
	// more, and how many are taken at a time: so one whose machines don't answer has less
	// than half of the room. Of commands it has one.
	workspaceShare = 16
	// leaseSpacing is between two calls for more, so that many that are due at once take no
	// processor from a run: it is 160 checks a second at most.
	leaseSpacing = 100 * time.Millisecond
)

// checkPurpose separates checks from all else that an identity authenticates.
const checkPurpose = "machine health check"

// signChecks authenticates the checks of a report's machines. They come from a run of that
// workspace, by the spool that only this agent's child has written to.
func (k *keys) signChecks(workspace uuid.UUID, listed []provision.Machine) []provision.Machine {
	by := k.makers()
	if !slices.ContainsFunc(listed, func(m provision.Machine) bool { return m.Check != nil }) {
		return listed
	}
	listed = slices.Clone(listed)
	for i, m := range listed {
		if m.Check != nil && m.Check.Kind == provision.CheckCommand && !k.fair() {
			listed[i].Check = nil // agents of the release before, and their database, don't know it
		} else if m.Check != nil {
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
	queue    queue.Queue
	keys     *keys
	notes    *checkNotes
	ranges   machinehealth.Ranges
	commands *commandChecks
	log      *slog.Logger
	due      chan struct{}

	mu sync.Mutex
	// asked is when each machine was asked last, so that no row has one asked more often
	// than the run wanted that asked for the check.
	asked map[string]time.Time
	busy  busy
	// ended receives when a check has for want of whose room others may wait.
	ended chan struct{}
}

// busy is what of an agent's room is taken.
type busy struct {
	checks, commands int
	of               map[uuid.UUID]workspaceBusy
	// turn are the workspaces that have had their command of this turn: each other one that is
	// due comes before they get a further one, however many of theirs are due for longer.
	turn map[uuid.UUID]bool
}

// maxTurn is how many workspaces have one turn; the database passes over 500 in a call.
const maxTurn = 400

type workspaceBusy struct{ checks, commands int }

func (w workspaceBusy) full() bool { return w.checks >= workspaceShare || w.commands > 0 }

// room is what there is room for.
func (b *busy) room(fair bool, commands int) (room queue.CheckRoom) {
	room.Checks = checksAtOnce - b.checks
	if !fair {
		return room
	}
	room.Checks, room.Commands = min(room.Checks, workspaceShare), min(max(0, commands-b.commands), 1)
	for workspace, taken := range b.of {
		if taken.full() {
			room.Without = append(room.Without, workspace)
		}
	}
	if room.Commands > 0 {
		for workspace := range b.turn {
			if !b.of[workspace].full() {
				room.Without = append(room.Without, workspace)
			}
		}
	}
	return room
}

// nextTurn begins the next turn, and reports whether there was one: then more may be due.
func (b *busy) nextTurn() bool {
	had := len(b.turn) > 0
	clear(b.turn)
	return had
}

// scarce reports whether there is no room for all that may be due, the workspace's or any.
func (b *busy) scarce(workspace uuid.UUID) bool {
	return b.of[workspace].full() || b.checks > checksAtOnce-workspaceShare
}

// add counts a check that begins, or with -1 one that has ended.
func (b *busy) add(due queue.MachineCheck, n int) {
	w := b.of[due.Workspace]
	if due.Check.Kind == provision.CheckCommand {
		b.commands, w.commands = b.commands+n, w.commands+n
		if n > 0 {
			if len(b.turn) >= maxTurn {
				clear(b.turn)
			}
			b.turn[due.Workspace] = true
		}
	} else {
		b.checks, w.checks = b.checks+n, w.checks+n
	}
	if b.of[due.Workspace] = w; w == (workspaceBusy{}) {
		delete(b.of, due.Workspace)
	}
}

func (b *boot) newChecker() *checker {
	return newChecker(b.queue, b.keys, b.checkNotes, b.options.Settings.Policy.CheckRanges, b.newCommandChecks(), b.log)
}

func newChecker(q queue.Queue, k *keys, notes *checkNotes, ranges machinehealth.Ranges, commands *commandChecks, log *slog.Logger) *checker {
	return &checker{
		queue: q, keys: k, notes: notes, ranges: ranges, commands: commands, log: log,
		due: make(chan struct{}, 1), asked: map[string]time.Time{}, busy: busy{of: map[uuid.UUID]workspaceBusy{}, turn: map[uuid.UUID]bool{}}, ended: make(chan struct{}, 1),
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
	results := make(chan queue.CheckResult, checksAtOnce+commandsAtOnce)
	var working sync.WaitGroup
	working.Go(func() { c.reports(ctx, results) })
	var asking sync.WaitGroup
	defer working.Wait()
	defer close(results)
	defer asking.Wait()
	more := false // something may be due for which there was no room
	for {
		ended := c.ended
		if !more {
			ended = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-c.due:
		case <-ended:
		}
		for ctx.Err() == nil {
			room := c.room()
			more = room.Checks < workspaceShare || len(room.Without) > 0
			if room.Checks+room.Commands == 0 {
				break
			}
			checks, err := c.queue.LeaseChecks(ctx, room)
			if err != nil && ctx.Err() == nil {
				c.log.Warn("the checks of machines that are due could not be read; the next heartbeat tries again", "error", err)
			}
			if len(checks) == 0 {
				if err == nil && room.Commands > 0 && c.nextTurn() {
					continue
				}
				break
			}
			for _, check := range checks {
				if !c.begin(check) { // more than there is room for, of a database that is not ours
					continue
				}
				asking.Go(func() {
					defer c.end(check)
					if result, asked := c.ask(ctx, check); asked {
						results <- result
					}
				})
			}
			wait(ctx, leaseSpacing)
		}
	}
}

func (c *checker) nextTurn() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.busy.nextTurn()
}

func (c *checker) room() queue.CheckRoom {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.busy.room(c.keys.fair(), c.commands.most)
}

// begin counts a check, unless there is no room for it.
func (c *checker) begin(due queue.MachineCheck) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	full := c.busy.checks >= checksAtOnce
	if due.Check.Kind == provision.CheckCommand {
		full = c.busy.commands >= c.commands.most
	}
	if full {
		return false
	}
	c.busy.add(due, 1)
	return true
}

func (c *checker) end(due queue.MachineCheck) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy.scarce(due.Workspace) {
		select {
		case c.ended <- struct{}{}:
		default:
		}
	}
	c.busy.add(due, -1)
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

// ask does one check, if an agent of this cluster has authenticated it, and knows of none by a
// command that is newer; false where it was asked a moment ago, which the row should know.
func (c *checker) ask(ctx context.Context, due queue.MachineCheck) (queue.CheckResult, bool) {
	result := queue.CheckResult{Machine: due.Machine, Result: provision.HealthUnknown, Why: "the check is not one that a run of this cluster has asked for; deploy again"}
	switch {
	case !c.keys.held().Verify(checkPurpose, due.Workspace, due.Check.Message(due.Workspace, due.Name), due.Check.MAC):
		c.log.Warn("a health check is refused: nobody of this cluster has authenticated it", "machine", due.Name, "workspace", due.Workspace)
	case !c.current(due, &result):
	case !c.mayAsk(due, time.Now()):
		return result, false
	case due.Check.Kind == provision.CheckCommand && due.Check.Command != nil:
		result.Result, result.Why = c.commands.ask(ctx, due)
	default:
		result.Result, result.Why = machinehealth.Check(ctx, due.Check, c.ranges)
	}
	if result.Why = strings.Join(strings.Fields(printable.Text(result.Why)), " "); len(result.Why) > longestWhy {
		result.Why = strings.ToValidUTF8(result.Why[:longestWhy], "")
	}
	return result, true
}

// current reports whether a genuine check is the newest that this agent knows of its workspace, and
// remembers that it was. The command of an older one is that of an older commit, which a later
// run may have replaced for its faults; result says so then.
func (c *checker) current(due queue.MachineCheck, result *queue.CheckResult) bool {
	if due.Check.Kind != provision.CheckCommand || due.Check.Command == nil {
		return true
	}
	made := due.Check.Command.Made
	known, err := c.notes.newest(due.Workspace)
	switch {
	case err != nil:
		result.Why = "the agent can't read which check is the newest of this workspace; its log has the details. Deploy again with this agent to have a new one"
		c.log.Error("a health check is refused: it is not known which one is the newest", "machine", due.Name, "workspace", due.Workspace, "error", err)
		return false
	case made < known:
		result.Why = fmt.Sprintf("the check was made at %s, and this agent knows a newer one of this workspace, made at %s: its row was changed or restored from a backup, or the clocks of two agents differ; deploy again", moment(made), moment(known))
		c.log.Warn("a health check is refused: it is older than the newest of its workspace", "machine", due.Name, "workspace", due.Workspace, "made", moment(made), "newest", moment(known))
		return false
	case made > known:
		if err := c.notes.note(due.Workspace, made); err != nil {
			c.log.Warn("an older check could be done after this one", "machine", due.Name, "workspace", due.Workspace, "error", err)
		}
	}
	return true
}

// moment is a time in milliseconds since 1970, for people.
func moment(milliseconds int64) string {
	return time.UnixMilli(milliseconds).UTC().Format(time.RFC3339)
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
