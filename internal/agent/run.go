package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/spool"
)

// run supervises one provision from its claim until nothing of it is left.
type run struct {
	boot       *boot
	assignment provision.Assignment
	log        *slog.Logger
	watch      *watch
	progress

	mu     sync.Mutex
	reason job.StopReason // the first that was given
	stops  chan job.StopReason
	// watched has whether people watch the log, once that has changed; watching, which is the
	// heartbeat's, is what it was last.
	watched  chan bool
	watching bool
	// detaching is closed when the run is to be set down, if its work continues by itself.
	detaching  chan struct{}
	detachOnce sync.Once
	// asked ends when it is asked to stop.
	asked context.Context
	ask   context.CancelFunc
}

func newRun(b *boot, a provision.Assignment) *run {
	r := &run{
		boot: b, assignment: a, stops: make(chan job.StopReason, 1), detaching: make(chan struct{}), watched: make(chan bool, 1),
		log: b.log.With("provision", a.Number, "workspace", a.Workspace, "claim", a.ClaimID),
	}
	r.asked, r.ask = context.WithCancel(context.Background())
	return r
}

// start supervises a provision in a goroutine, which has a slot and gives it
// back.
func (b *boot) start(a provision.Assignment) {
	tracer, carry := b.options.Tracer, (*run).carryOut
	if b.options.Tracer != nil {
		a.Traceparent = b.trace(a.ClaimID)
	}
	if b.options.Launcher != nil {
		tracer, carry = nil, (*run).dispatch // the runner records
	}
	r := newRun(b, a)
	r.watch = b.newWatch().run(a, tracer)
	if id := r.watch.trace.id(); id != "" {
		r.log = r.log.With("trace_id", id)
	}
	b.inflight.hold(a.ClaimID, r)
	b.heartbeat.began()
	b.childrenEnded.Add(1)
	b.status.busy.Add(1)
	b.runsOver.Go(func() {
		carry(r)
		r.watch.end()
		b.inflight.release(a.ClaimID)
		b.status.busy.Add(-1)
		b.slots <- struct{}{}
	})
}

// stop asks the run to end before its time. Only the first reason counts, and
// the child hears of it once.
func (r *run) stop(reason job.StopReason) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reason != "" {
		return
	}
	r.reason = reason
	r.stops <- reason
	r.ask()
	r.log.Info("stopping", "reason", reason)
}

// detach asks the run to be set down, if its work continues by itself.
// viewed says whether people watch the log. The heartbeat alone calls it.
func (r *run) viewed(is bool) {
	if r.watching == is {
		return
	}
	r.watching = is
	select { // only the newest counts
	case <-r.watched:
	default:
	}
	r.watched <- is
}

func (r *run) detach() { r.detachOnce.Do(func() { close(r.detaching) }) }

func (r *run) stopReason() job.StopReason {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reason
}

// lost says that the claim is no longer this agent's. An apply that has begun is finished all the
// same, and settled late, unless its work continues without a process here: another agent may
// have taken that up.
func (r *run) lost() {
	if r.applying.Load() || r.ending.Load() {
		r.detach()
	} else {
		r.stop(job.StopLost)
	}
}

// carryOut does what the package comment draws. The claim is in flight when it
// begins; when it returns the workspace is free, and the spool is removed or
// left to the next start.
func (r *run) carryOut() {
	// The database has freed the workspace as soon as it has the result; its
	// work directory is free when the child before has ended.
	release, stopped := r.awaitWorkspace()
	if release == nil {
		r.boot.childrenEnded.Done()
		r.end(neverStarted(stopped))
		return
	}
	unsaved := false
	// What has to do with the database may take for ever, so nobody who waits
	// for the child waits for that too.
	over := sync.OnceFunc(func() {
		unsaved = r.boot.dirs.close(r.assignment.WorkspaceID, r.log)
		release()
		r.boot.tidier.runEnded()
		r.boot.childrenEnded.Done()
	})
	defer over()
	defer r.ask()

	s, c, err := r.launch()
	if err != nil {
		over()
		r.cannotStart(err)
		if s != nil {
			r.remove(s)
		}
		return
	}
	r.log.Info("started", "pid", c.cmd.Process.Pid)

	d := r.boot.deliveries.begin(s, &r.progress, r.log, r.watch, c.wake, c.control.send)
	outcome := r.supervise(c, d.result)
	if err := r.boot.children.sweep(); err != nil {
		r.log.Error("what the run left running could not be ended", "error", err)
		r.boot.dirs.uids.abandon(r.assignment.WorkspaceID)
	}
	said := c.clear()
	over()
	close(d.dead)
	if outcome == nil {
		outcome = <-d.result
	}
	if said != "" {
		r.log.Warn("the run's process said", "output", said)
	}
	if outcome.err == nil && outcome.Result == nil {
		outcome = r.explain(s, c, unsaved)
	}
	r.settle(s, outcome)
}

// tellOfWorkspace is how long a run waits for its workspace before the log says
// so: ordinarily it is free in an instant.
const tellOfWorkspace = 5 * time.Second

// awaitWorkspace waits until no process of an earlier run uses the workspace and
// returns what frees it again, or why the run is to stop before.
func (r *run) awaitWorkspace() (release func(), stopped job.StopReason) {
	slow := time.AfterFunc(tellOfWorkspace, func() {
		r.log.Warn("waiting for an earlier run's process to end; it still has the workspace's directory")
	})
	defer slow.Stop()
	return r.boot.workspaces.take(r.assignment.WorkspaceID, r.stops)
}

// launch makes what the child needs and starts it. The spool is there from
// when it was made, error or not.
func (r *run) launch() (*claimFiles, *child, error) {
	j, f, err := r.gather(r.boot.given)
	if err != nil {
		return nil, nil, err
	}
	defer closeAll(f.stateIn)
	r.boot.tidier.makeRoom(r.asked)
	var uid int
	if j.Dirs, uid, err = r.boot.dirs.open(r.assignment.WorkspaceID, r.log); err != nil {
		return nil, nil, err
	}
	s, files, err := newClaimFiles(r.boot.dir, r.assignment, uid)
	if err != nil {
		return nil, nil, err
	}
	defer files.close()
	if _, err := files.plan.WriteAt(append(f.approved, f.given...), 0); err != nil {
		return s, nil, fmt.Errorf("hand down what the run is to use: %w", err)
	}
	files.stateIn = f.stateIn
	j.NoteKey, j.Approved = r.boot.noteKey, int64(len(f.approved))
	if r.boot.options.Tracer != nil {
		j.Launched = time.Now()
	}
	children := launcher{r.boot.options.Command, r.boot.options.Env, r.boot.dirs.uids, r.boot.children}
	c, err := children.start(j, files, uid)
	return s, c, err
}

// gather gets all that a child or a runner is to know, but for what is of one process. Unless it
// fails, the caller closes what it has fetched.
func (r *run) gather(get func(context.Context, provision.Assignment) (fetched, error)) (j job.Job, f fetched, err error) {
	b := r.boot
	if err := b.notes.check(r.assignment); err != nil {
		return j, f, err
	}
	j = job.Job{Assignment: r.assignment, Settings: b.options.Settings, Instance: b.dir.instance, MaySetDown: b.contract >= setDownContract}
	if j.SealedVars, j.SealedInput, err = b.opened(r.assignment); err != nil {
		return j, f, err
	}
	if read := b.options.Credentials; read != nil {
		if j.Credentials, err = read(r.assignment.Workspace, r.assignment.WorkspaceID); err != nil {
			return j, f, err
		}
	}
	if read := b.options.PoolsFor; read != nil {
		if j.Pools, err = read(r.assignment.Workspace, r.assignment.WorkspaceID); err != nil {
			return j, f, err
		}
	}
	if f, err = r.fetch(get); err != nil {
		return j, f, err
	}
	if err := b.notes.noteName(r.assignment); err != nil {
		closeAll(f.stateIn)
		return j, f, err
	}
	if read := b.options.GitHosts; read != nil {
		j.Settings.Git.Hosts = read(context.Background())
	}
	if j.ChecksAfter, err = b.checkNotes.newest(r.assignment.WorkspaceID); err != nil {
		r.log.Warn("the health checks of this run may count as older than those before it", "error", err)
	}
	j.ClusterKey, j.ManagedState, j.Requester, j.RequesterRefused = f.key, f.managed, f.trusted.recipient, f.trusted.refused
	return j, f, nil
}

// setDownContract is the first contract whose databases know runs that are set down.
const setDownContract = 7

// supervise returns when the child has ended, with the outcome of the delivery
// if that failed before.
func (r *run) supervise(c *child, delivered <-chan *outcome) (early *outcome) {
	settings, margin := r.boot.options.Settings, r.boot.limits.endMargin
	limit := time.NewTimer(settings.TimeLimit(r.assignment.Operation) + settings.CancelGrace + margin)
	defer limit.Stop()
	detaching := r.detaching
	for {
		select {
		case <-c.ended:
			return early
		case <-detaching:
			detaching = nil
			c.control.send(job.Control{Detach: true})
		case watched := <-r.watched:
			c.control.send(job.Control{Watched: &watched})
		case reason := <-r.stops:
			c.control.send(job.Control{Stop: reason})
			limit.Reset(settings.CancelGrace + margin)
		case early = <-delivered:
			delivered = nil
			r.log.Warn("its lines cannot be delivered", "error", early.err)
			r.lost() // nobody answers the child any more
		case <-limit.C:
			r.log.Error("killing the run's process: it did not end in time")
			c.kill()
		}
	}
}

// explain says, in place of a child that died without a result, what became of
// its run, and delivers that.
func (r *run) explain(s *claimFiles, c *child, unsaved bool) *outcome {
	how, oom := c.how(), c.outOfMemory()
	r.log.Error("the run's process ended without a result", "how", how, "memory", oom)
	if err := r.writeEnd(s, how, oom, unsaved); err != nil {
		return &outcome{err: fmt.Errorf("write the run's end: %w", err)}
	}
	return r.boot.deliveries.resume(s, &r.progress, r.log, r.watch)
}

func (r *run) writeEnd(s *claimFiles, how, oom string, unsaved bool) (err error) {
	lines, err := s.open(os.O_RDWR | os.O_APPEND)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lines.Close()) }()
	tail, err := s.openTail(os.O_RDWR | os.O_APPEND)
	if err != nil {
		return err
	}
	defer closeAll(tail[:]...)
	w, err := spool.Resume(lines, tail)
	if err != nil {
		return err
	}
	report, line := verdict(how, oom, r.stopReason(), r.applying.Load())
	if unsaved {
		report.Detail.StateUnsaved = &unsaved
		line += " A state that the engine could not store is kept on this agent; its next run in the workspace stores it first."
	}
	w.System("%s", line)
	return errors.Join(w.Update(report), w.Close())
}

// fetch gets what a run needs. While the database is away it waits, until the run is
// cancelled or its time limit is reached: nothing has begun yet, and people want the deploy
// more than a message about an outage.
func (r *run) fetch(get func(context.Context, provision.Assignment) (fetched, error)) (f fetched, err error) {
	ctx, cancel := context.WithCancel(r.boot.deliveries.ctx)
	defer cancel()
	defer context.AfterFunc(r.asked, cancel)()
	if limit := r.timeLimit(); limit > 0 {
		defer time.AfterFunc(limit, func() { r.stop(job.StopTimedOut) }).Stop()
	}
	defer func() {
		// Nothing is wrong with what it did not get.
		if queue.KindOf(err) == queue.ClaimLost {
			r.stop(job.StopLost)
			err = errStopped
		}
	}()
	return get(ctx, r.assignment)
}

// timeLimit is how long the run may take, 0 for any time. Its child measures its
// own time; see limitOf in package executor.
func (r *run) timeLimit() time.Duration {
	limit := r.boot.options.Settings.TimeLimit(r.assignment.Operation)
	snapshot, err := provision.ParseSnapshot(r.assignment.Snapshot)
	if err != nil || snapshot.TimeoutSeconds == 0 {
		return limit
	}
	if wanted := time.Duration(snapshot.TimeoutSeconds) * time.Second; limit == 0 || wanted < limit {
		return wanted
	}
	return limit
}

// settle deals with the spool of a run whose delivery has ended.
func (r *run) settle(s *claimFiles, o *outcome) {
	switch {
	case o.err == nil && o.Result != nil:
		r.log.Info("ended", "status", o.Result.Status, "error_code", o.Result.Detail.ErrorCode, "lines", o.Lines, "bytes", o.Bytes)
		r.remove(s)
	case r.boot.deliveries.ctx.Err() != nil:
		r.log.Warn("its last lines and its result could not be delivered; the next start of this agent does it", "spool", s.path(linesSuffix))
	case queue.KindOf(o.err) == queue.ClaimLost:
		r.watch.ended(provision.Report{Status: provision.Failed, Detail: provision.Detail{ErrorCode: provision.CodeAgentLost}})
		dismiss(s, r.log, o)
	default:
		// The database or the disk will say the same again. The provision must
		// not stay PROCESSING for that.
		r.end(failed("The run has ended, but its result could not be stored. The agent's log has the details."))
		reject(s, r.log, o.err)
	}
}

// cannotStart ends a provision for which there is no child.
func (r *run) cannotStart(err error) {
	if errors.Is(err, errStopped) {
		r.end(neverFetched(r.stopReason()))
		return
	}
	if refused, ok := errors.AsType[*provision.Failure](err); ok {
		r.log.Warn("not started", "error_code", refused.Code)
		r.end(provision.Report{Status: provision.Failed, Detail: provision.Detail{ErrorCode: refused.Code, ErrorMessage: refused.Message}})
		return
	}
	r.log.Error("cannot start", "error", err)
	if diskFull(err) {
		r.end(provision.Report{Status: provision.Failed, Detail: provision.Detail{ErrorCode: provision.CodeSpoolFailed, ErrorMessage: fmt.Sprintf(
			"The agent could not start the run: its disk is full. It tried to %v. Nothing was changed. Make room on the disk of %s on the agent's machine, or give it a larger volume, then retry.",
			err, r.boot.dir.root)}})
		return
	}
	r.end(failed("The agent could not start the run; nothing was changed. The agent's log has the details."))
}

// end reports how a run ended without a spool, however often it takes.
func (r *run) end(report provision.Report) {
	r.ending.Store(true)
	err := persist(r.boot.deliveries.ctx, func(ctx context.Context) error {
		return patiently(r.boot.queue.Report(ctx, r.assignment.ClaimID, report))
	})
	if err != nil {
		r.boot.unsaid.Store(true)
		r.log.Error("the run's end could not be reported", "error", err)
		return
	}
	r.watch.ended(report)
}

func (r *run) remove(s *claimFiles) {
	if err := s.remove(); err != nil {
		r.log.Error("the spool could not be removed", "error", err)
	}
}

// errStopped is met where a run was asked to stop before it had a child.
var errStopped = errors.New("asked to stop")

// dismiss deals with a spool whose claim is lost. A result that comes too late
// to count is only logged: all its lines are stored.
func dismiss(s *claimFiles, log *slog.Logger, o *outcome) {
	if o.Unwanted == nil {
		reject(s, log, o.err)
		return
	}
	log.Warn("its result came too late to count", "status", o.Unwanted.Status, "error_code", o.Unwanted.Detail.ErrorCode, "refused", o.err)
	removeOrReject(s, log)
}

// reject keeps for people a spool that cannot be delivered.
func reject(s *claimFiles, log *slog.Logger, why error) {
	path, err := s.reject()
	if err != nil {
		log.Error("the spool could not be moved", "error", err, "refused", why)
		return
	}
	if _, answered := errors.AsType[*queue.Error](why); !answered {
		log.Error("what is left of the run cannot be used; it is kept", "file", path, "error", why)
		return
	}
	log.Warn("the database does not take the rest of the run; it is kept", "file", path, "refused", why)
}
