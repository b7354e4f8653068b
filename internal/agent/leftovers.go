package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/tracing"
)

const (
	// lookAtLock is how often the lock of an old child is tried.
	lookAtLock = 100 * time.Millisecond
	// tellOfLock is how often the log says that it is waited for.
	tellOfLock = 10 * time.Second
)

// leftovers are what earlier starts of the agent have left: claims with lines to deliver,
// processes, and files with secrets.
//
//	find ─▶ claims held, secrets removed ─▶ settle: what is dead delivered, ended and swept
//	                                               what lives keeps its slot until it has ended
//
// The secrets do not wait for the database; all else does.
type leftovers struct {
	log        *slog.Logger
	queue      orphanQueue
	deliveries *deliveries
	dirs       workspaceDirs
	inflight   *inflight
	observer   Observer
	// engineMark is how an entry of the environment begins of the engine, and of all
	// below it, that runs in a work directory; nil: there is no engine.
	engineMark func(work string) string
	newWatch   func() *watch
	tracer     *tracing.Tracer
	// What has not ended yet has, in the boot that it outlives, a place in each.
	workspaces *locks
	slots      chan struct{}
	busy       *atomic.Int64
	outliving  *atomic.Int32
	outlived   *sync.WaitGroup

	claims []*claimFiles // all that were found
}

// orphanQueue is the part of the queue that ends what is left.
type orphanQueue interface {
	FailOrphans(ctx context.Context, except []uuid.UUID) ([]uuid.UUID, error)
	Report(ctx context.Context, claim uuid.UUID, report provision.Report) error
}

// find takes in hand the claims that earlier boots left, and removes the secrets of what
// is dead.
func (l *leftovers) find() (err error) {
	if l.claims, err = leftClaims(l.dirs.dir); err != nil {
		return err
	}
	for _, s := range l.claims {
		l.inflight.hold(s.claim, nil)
		s.watch = l.newWatch().leftover(s, l.tracer)
	}
	l.forgetSecrets()
	return nil
}

// close ends the watch of those that are not settled in this boot.
func (l *leftovers) close() {
	for _, s := range l.claims {
		s.watch.end()
	}
}

// settle delivers what children of earlier boots left to tell, ends what
// they left running, and has the database end what has no result. One that still
// lives keeps its slot and its workspace, and is dealt with when it has ended.
// It ends early with ctx; the next start goes on then.
func (l *leftovers) settle(ctx context.Context) error {
	dead, living := l.apart()
	// Side by side: one that takes long does not keep the others' lines.
	errs := make([]error, len(dead)+1)
	var all sync.WaitGroup
	stop := context.AfterFunc(ctx, l.deliveries.stop)
	for i, s := range dead {
		all.Go(func() { errs[i] = l.settleOne(ctx, s) })
	}
	all.Go(func() { errs[len(dead)] = l.clearAway(ctx, living) })
	all.Wait()
	if stopped := stop(); !stopped {
		return ctx.Err()
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := l.sweep(ctx); err != nil {
		return err
	}
	for _, s := range living {
		l.outlive(ctx, s)
	}
	return nil
}

// sweep has the database end what earlier boots left without a result, but for
// what is still in hand.
func (l *leftovers) sweep(ctx context.Context) error {
	return persist(ctx, func(ctx context.Context) error {
		orphans, err := l.queue.FailOrphans(ctx, l.inflight.leftovers())
		for _, id := range orphans {
			l.orphanLog(id).Warn("ended a provision that an earlier start of this agent left without a result", "provision_id", id)
		}
		l.observer.Swept(len(orphans))
		l.tellSwept(orphans)
		return patiently(err)
	})
}

// tellSwept has the traces of what the database has ended recorded.
func (l *leftovers) tellSwept(orphans []uuid.UUID) {
	for _, s := range l.claims {
		if slices.Contains(orphans, s.about.Provision) {
			s.watch.trace.over(provision.Report{Status: provision.Failed, Detail: provision.Detail{ErrorCode: provision.CodeAgentRestarted}})
			s.watch.trace.record()
		}
	}
}

// outlive deals with a child of an earlier boot that still lives, when it has
// ended. Until then neither its slot nor its workspace is used; if that is not
// in this boot, they are not used in this boot.
func (l *leftovers) outlive(ctx context.Context, s *claimFiles) {
	slot := false
	select {
	case <-l.slots:
		slot = true
		l.busy.Add(1)
	default: // there were more slots before
	}
	// There is no second one in the workspace: its run would have waited.
	release, _ := l.workspaces.tryTake(s.about.Workspace)
	l.outliving.Add(1) // and for as long as it cannot be ended
	l.outlived.Go(func() {
		log := l.logOf(s)
		err := awaitChild(ctx, s, log)
		if err == nil || errors.Is(err, errOdd) { // without its engine a child ends as well
			err = errors.Join(l.endEngines(ctx, log, s.about.Workspace.String()), l.endUID(ctx, log, s.about.UID))
		}
		if err != nil {
			l.workspaces.abandon(s.about.Workspace) // something may still be at work there
			if ctx.Err() == nil {
				log.Error("what an earlier start left running cannot be ended; its workspace is not used until the next start", "error", err)
			}
			return
		}
		l.dirs.close(s.about.Workspace, log)
		l.outliving.Add(-1)
		if err := errors.Join(l.settleOne(ctx, s), l.sweep(ctx)); err != nil && ctx.Err() == nil {
			log.Error("what an earlier start left could not be settled", "error", err)
		}
		if release != nil {
			release()
		}
		if slot {
			l.busy.Add(-1)
			l.slots <- struct{}{}
		}
	})
}

// orphanLog is for a provision of which the database says the id alone: what else
// is known of it stands in its spool, if it came to one.
func (l *leftovers) orphanLog(id uuid.UUID) *slog.Logger {
	for _, s := range l.claims {
		if s.about.Provision == id {
			return l.logOf(s)
		}
	}
	return l.log.With("provision", "unknown", "workspace", "unknown", "claim", "unknown")
}

func (l *leftovers) logOf(s *claimFiles) *slog.Logger {
	return l.log.With("provision", s.about.Number, "workspace", s.about.Name, "claim", s.claim)
}

// settleOne delivers one spool, once its child has ended. What is wrong
// with a spool is no reason not to start.
func (l *leftovers) settleOne(ctx context.Context, s *claimFiles) error {
	defer s.watch.end() // what is rejected waits for nothing
	log := l.logOf(s)
	err := awaitChild(ctx, s, log)
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		reject(s, log, err)
		l.inflight.release(s.claim)
		return nil
	}
	o := l.deliveries.resume(s, nil, log, s.watch)
	switch {
	case o.err == nil:
		log.Info("delivered what an earlier start left", "lines", o.Lines, "with_result", o.Result != nil)
		if o.Result == nil {
			l.tellUnsaved(ctx, s, log)
		}
		removeOrReject(s, log)
	case errors.Is(o.err, fs.ErrNotExist):
		// The start before ended between making one file and the next.
		removeOrReject(s, log)
	case ctx.Err() != nil:
		return ctx.Err()
	case queue.KindOf(o.err) == queue.Superseded:
		return o.err
	case queue.KindOf(o.err) == queue.ClaimLost:
		dismiss(s, log, o)
	default:
		reject(s, log, o.err)
	}
	l.inflight.release(s.claim)
	return nil
}

// tellUnsaved tells the database, before it ends a run without a result, that
// this agent has a state of the workspace that is not stored: no other may run
// it then. A claim that nothing can come of any more has nothing to tell.
func (l *leftovers) tellUnsaved(ctx context.Context, s *claimFiles, log *slog.Logger) {
	unsaved, err := l.dirs.unsaved(s.about.Workspace.String())
	if err != nil {
		log.Error("cannot tell whether a state is kept that could not be stored", "error", err)
	}
	if !unsaved {
		return
	}
	err = persist(ctx, func(ctx context.Context) error {
		return patiently(l.queue.Report(ctx, s.claim, provision.Report{
			Status: provision.Processing, Detail: provision.Detail{StateUnsaved: &unsaved},
		}))
	})
	if err != nil {
		log.Warn("the database does not take it that a state is kept on this agent", "refused", err)
	}
}

func removeOrReject(s *claimFiles, log *slog.Logger) {
	if err := s.remove(); err != nil {
		reject(s, log, err)
	}
}

// clearAway ends what runs of earlier boots left running where child and agent
// were both killed, and removes their secrets; it leaves alone what still lives.
func (l *leftovers) clearAway(ctx context.Context, living []*claimFiles) error {
	abandoned, err := l.without(living)
	if err != nil {
		return err
	}
	if err := l.endEngines(ctx, l.log, abandoned...); err != nil {
		return err
	}
	if err := l.endUIDs(ctx, living); err != nil {
		return err
	}
	for _, workspace := range abandoned {
		if err := errors.Join(l.dirs.clear(workspace), l.dirs.shut(workspace)); err != nil {
			l.log.Error("files of earlier runs, with variables, may be left in the data directory", "error", err)
		}
	}
	return nil
}

// forgetSecrets removes the secrets of runs of earlier boots, but not those of a
// child that still lives.
func (l *leftovers) forgetSecrets() {
	_, living := l.apart()
	abandoned, err := l.without(living)
	for _, workspace := range abandoned {
		err = errors.Join(err, l.dirs.removeSecrets(workspace))
	}
	if err != nil {
		l.log.Error("files of earlier runs, with variables, may be left in the data directory", "error", err)
	}
}

// apart tells the claims whose child has ended from those whose child lives.
func (l *leftovers) apart() (dead, living []*claimFiles) {
	for _, s := range l.claims {
		if s.lives() {
			living = append(living, s)
		} else {
			dead = append(dead, s)
		}
	}
	return dead, living
}

// without lists the workspaces that have a directory, but for those of the living.
func (l *leftovers) without(living []*claimFiles) ([]string, error) {
	workspaces, err := l.dirs.list()
	return slices.DeleteFunc(workspaces, func(workspace string) bool {
		return slices.ContainsFunc(living, func(s *claimFiles) bool { return s.about.Workspace.String() == workspace })
	}), err
}

// endEngines ends the engines of workspaces and all below them.
func (l *leftovers) endEngines(ctx context.Context, log *slog.Logger, workspaces ...string) error {
	if l.engineMark == nil {
		return nil
	}
	var marks []string
	for _, workspace := range workspaces {
		marks = append(marks, l.engineMark(l.dirs.dir.path("work", workspace)))
	}
	return l.end(ctx, log, func(ctx context.Context) ([]process.Info, error) { return process.KillByEnvironment(ctx, marks...) })
}

// endUIDs ends whatever runs with a uid of ours and removes what it left, unless
// it is a run of an earlier start, which keeps its uid.
func (l *leftovers) endUIDs(ctx context.Context, living []*claimFiles) error {
	u := l.dirs.uids
	if u == nil {
		return nil
	}
	for _, s := range living {
		u.keep(s.about.UID, s.about.Workspace)
	}
	err := l.end(ctx, l.log, func(ctx context.Context) ([]process.Info, error) {
		return process.KillByUID(ctx, u.free)
	})
	if err != nil {
		return err
	}
	if err := isolation.Forget(u.free); err != nil {
		// That is no reason not to start: it is tried again for each uid.
		l.log.Warn("what earlier runs left cannot be removed", "error", err)
		u.suspect()
	}
	return nil
}

// endUID ends what a run of an earlier start left running as its uid. A root
// without CAP_SYS_PTRACE, as in most containers, cannot tell it otherwise.
func (l *leftovers) endUID(ctx context.Context, log *slog.Logger, uid int) error {
	if l.dirs.uids == nil || !l.dirs.uids.block.Has(uid) {
		return nil
	}
	return l.end(ctx, log, func(ctx context.Context) ([]process.Info, error) {
		return process.KillByUID(ctx, func(other int) bool { return other == uid })
	})
}

// end has kill end what earlier runs left running. Like their parents, they are
// waited for without a limit.
func (l *leftovers) end(ctx context.Context, log *slog.Logger, kill func(context.Context) ([]process.Info, error)) error {
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, tellOfLock)
		found, err := kill(limited)
		over := limited.Err() != nil
		cancel()
		for _, p := range found {
			log.Warn("ended a process that a run of an earlier start left running", "pid", p.PID, "name", p.Name)
		}
		if err == nil {
			return nil
		}
		if !over {
			return fmt.Errorf("look for what earlier runs left running: %w", err)
		}
		log.Warn("waiting for what earlier runs left running to end", "error", err)
	}
	return ctx.Err() // an old child may live and use its files
}

// awaitChild waits until the child of an earlier boot has ended. Its lifeline
// is cut, so it is ending; how long that takes is up to what it runs. There is
// no limit: a second child must not touch what the first one may still write.
// Besides the end of ctx, only a lock that is no file any more is an error.
func awaitChild(ctx context.Context, s *claimFiles, log *slog.Logger) error {
	began := time.Now()
	told := began.Add(-tellOfLock)
	for {
		free, err := s.free()
		switch {
		case free:
			return nil
		case errors.Is(err, errOdd):
			return fmt.Errorf("look whether an earlier run's process lives: %w", err)
		}
		if time.Since(told) >= tellOfLock {
			told = time.Now()
			trouble := log
			if err != nil {
				trouble = log.With("error", err)
			}
			trouble.Warn("waiting for an earlier run's process to end; its slot and its workspace are not used until then",
				"since", time.Since(began).Round(time.Second), "lock", s.path(lockSuffix))
		}
		if !wait(ctx, lookAtLock) {
			return ctx.Err()
		}
	}
}
