package agent

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

// run supervises one provision from its claim until nothing of it is left.
type run struct {
	boot       *boot
	assignment provision.Assignment
	log        *slog.Logger
	watch      *watch
	// applying is set when the database has agreed to the apply, or is being
	// asked: from then on the run is finished, whatever becomes of the claim.
	applying atomic.Bool
	// ending is set when the database has heard of the end, or is being told:
	// from then on it may call the claim lost, and that is as it should be.
	ending atomic.Bool

	mu     sync.Mutex
	reason job.StopReason // the first that was given
	stops  chan job.StopReason
	// asked ends when it is asked to stop.
	asked context.Context
	ask   context.CancelFunc
}

func newRun(b *boot, a provision.Assignment) *run {
	r := &run{
		boot: b, assignment: a, stops: make(chan job.StopReason, 1),
		log: b.log.With("provision", a.Number, "workspace", a.Workspace, "claim", a.ClaimID),
	}
	r.asked, r.ask = context.WithCancel(context.Background())
	return r
}

// start supervises a provision in a goroutine, which has a slot and gives it
// back.
func (b *boot) start(a provision.Assignment) {
	r := newRun(b, a)
	r.watch = b.watchRun(a.Operation)
	b.hand.hold(a.ClaimID, r)
	b.heart.began()
	b.children.Add(1)
	b.now.busy.Add(1)
	b.runs.Go(func() {
		r.carryOut()
		r.watch.end()
		b.hand.release(a.ClaimID)
		b.now.busy.Add(-1)
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

func (r *run) stopReason() job.StopReason {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reason
}

// lost says that the claim is no longer this agent's. An apply that has begun
// is finished all the same, and settled late.
func (r *run) lost() {
	if !r.applying.Load() && !r.ending.Load() {
		r.stop(job.StopLost)
	}
}

// carryOut does what package comment draws. The claim is in hand when it
// begins; when it returns the workspace is free, and the spool is removed or
// left to the next start.
func (r *run) carryOut() {
	// The database has freed the workspace as soon as it has the result; its
	// work directory is free when the child before has ended.
	release, stopped := r.awaitWorkspace()
	if release == nil {
		r.boot.children.Done()
		r.end(neverStarted(stopped))
		return
	}
	unsaved := false
	// What has to do with the database may take for ever, so nobody who waits
	// for the child waits for that too.
	over := sync.OnceFunc(func() {
		unsaved = r.boot.clear(r.assignment.WorkspaceID, r.log)
		release()
		r.boot.tidier.runEnded()
		r.boot.children.Done()
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

	d := r.deliver(s, c.wake, c.control.send)
	outcome := r.supervise(c, d.result)
	if err := r.boot.nursery.sweep(); err != nil {
		r.log.Error("what the run left running could not be ended", "error", err)
		r.boot.dir.uids.abandon(r.assignment.WorkspaceID)
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
func (r *run) launch() (*spool, *child, error) {
	if err := r.boot.recognise(r.assignment); err != nil {
		return nil, nil, err
	}
	sealed, err := r.boot.openSealed(r.assignment)
	if err != nil {
		return nil, nil, err
	}
	var credentials job.Credentials
	if read := r.boot.options.Credentials; read != nil {
		if credentials, err = read(r.assignment.Workspace, r.assignment.WorkspaceID); err != nil {
			return nil, nil, err
		}
	}
	f, err := r.fetch()
	if err != nil {
		return nil, nil, err
	}
	defer closeAll(f.stateIn)
	if err := r.boot.acquaint(r.assignment); err != nil {
		return nil, nil, err
	}
	r.boot.tidier.makeRoom(r.asked)
	dirs, err := r.boot.dir.workspace(r.assignment.WorkspaceID)
	if err != nil {
		return nil, nil, err
	}
	uid, err := r.boot.dir.open(r.assignment.WorkspaceID, r.log)
	if err != nil {
		return nil, nil, err
	}
	s, files, err := r.boot.dir.newSpool(r.assignment, uid)
	if err != nil {
		return nil, nil, err
	}
	defer files.close()
	if _, err := files.plan.WriteAt(append(f.approved, f.given...), 0); err != nil {
		return s, nil, fmt.Errorf("hand down what the run is to use: %w", err)
	}
	files.stateIn = f.stateIn
	settings := r.boot.options.Settings
	if read := r.boot.options.GitHosts; read != nil {
		settings.Git.Hosts = read(context.Background())
	}
	c, err := r.boot.startChild(job.Job{
		Assignment: r.assignment, Settings: settings, Dirs: dirs, Instance: r.boot.dir.instance, NoteKey: r.boot.noteKey,
		SealedVars: sealed, Credentials: credentials, ClusterKey: f.key, ManagedState: f.managed,
		Requester: f.trusted.recipient, RequesterRefused: f.trusted.refused, Approved: int64(len(f.approved)),
	}, files, uid)
	return s, c, err
}

// supervise returns when the child has ended, with the outcome of the delivery
// if that failed before.
func (r *run) supervise(c *child, delivered <-chan *outcome) (early *outcome) {
	settings, margin := r.boot.options.Settings, r.boot.limits.endMargin
	limit := time.NewTimer(settings.TimeLimit(r.assignment.Operation) + settings.CancelGrace + margin)
	defer limit.Stop()
	for {
		select {
		case <-c.ended:
			return early
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
