package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/queue"
)

const (
	// lookAtLock is how often the lock of an old child is tried.
	lookAtLock = 100 * time.Millisecond
	// tellOfLock is how often the log says that it is waited for.
	tellOfLock = 10 * time.Second
)

// settleLeftovers delivers what children of earlier boots left to tell, ends what
// they left running, and has the database end what has no result. One that still
// lives keeps its slot and its workspace, and is dealt with when it has ended.
// It ends early with ctx; the next start goes on then.
func (b *boot) settleLeftovers(ctx context.Context, leftovers []*spool) error {
	dead, living := slices.Clone(leftovers), []*spool{}
	dead = slices.DeleteFunc(dead, func(s *spool) bool {
		free, err := s.free()
		lives := !free && !errors.Is(err, errOdd)
		if lives {
			living = append(living, s)
		}
		return lives
	})
	// Side by side: one that takes long does not keep the others' lines.
	errs := make([]error, len(dead)+1)
	var all sync.WaitGroup
	stop := context.AfterFunc(ctx, b.stopDelivering)
	for i, s := range dead {
		all.Go(func() { errs[i] = b.settleLeftover(ctx, s) })
	}
	all.Go(func() { errs[len(dead)] = b.clearAway(ctx, living) })
	all.Wait()
	if stopped := stop(); !stopped {
		return ctx.Err()
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := b.sweep(ctx); err != nil {
		return err
	}
	for _, s := range living {
		b.outlive(ctx, s)
	}
	return nil
}

// sweep has the database end what earlier boots left without a result, but for
// what is still in hand.
func (b *boot) sweep(ctx context.Context) error {
	return persist(ctx, func(ctx context.Context) error {
		orphans, err := b.queue.FailOrphans(ctx, b.hand.leftovers())
		for _, provision := range orphans {
			b.orphanLog(provision).Warn("ended a provision that an earlier start of this agent left without a result", "provision_id", provision)
		}
		b.options.Observer.Swept(len(orphans))
		return patiently(err)
	})
}

// outlive deals with a child of an earlier boot that still lives, when it has
// ended. Until then neither its slot nor its workspace is used; if that is not
// in this boot, they are not used in this boot.
func (b *boot) outlive(ctx context.Context, s *spool) {
	slot := false
	select {
	case <-b.slots:
		slot = true
		b.now.busy.Add(1)
	default: // there were more slots before
	}
	// There is no second one in the workspace: its run would have waited.
	release, _ := b.workspaces.tryTake(s.about.Workspace)
	b.tidier.outliving.Add(1) // and for as long as it cannot be ended
	b.runs.Go(func() {
		log := b.leftoverLog(s)
		err := awaitChild(ctx, s, log)
		if err == nil || errors.Is(err, errOdd) { // without its engine a child ends as well
			err = errors.Join(b.endEngines(ctx, log, b.enginesOf(s.about.Workspace.String())), b.endUID(ctx, log, s.about.UID))
		}
		if err != nil {
			b.workspaces.abandon(s.about.Workspace) // something may still be at work there
			if ctx.Err() == nil {
				log.Error("what an earlier start left running cannot be ended; its workspace is not used until the next start", "error", err)
			}
			return
		}
		b.clear(s.about.Workspace, log)
		b.tidier.outliving.Add(-1)
		if err := errors.Join(b.settleLeftover(ctx, s), b.sweep(ctx)); err != nil && ctx.Err() == nil {
			log.Error("what an earlier start left could not be settled", "error", err)
		}
		if release != nil {
			release()
		}
		if slot {
			b.now.busy.Add(-1)
			b.slots <- struct{}{}
		}
	})
}

// enginesOf is how the environment of a workspace's engines begins.
func (b *boot) enginesOf(workspace string) string {
	return "TF_DATA_DIR=" + b.dir.path("work", workspace) + string(filepath.Separator)
}

// orphanLog is for a provision of which the database says the id alone: what else
// is known of it stands in its spool, if it came to one.
func (b *boot) orphanLog(provision uuid.UUID) *slog.Logger {
	if s := b.left[provision]; s != nil {
		return b.leftoverLog(s)
	}
	return b.log.With("provision", "unknown", "workspace", "unknown", "claim", "unknown")
}

func (b *boot) leftoverLog(s *spool) *slog.Logger {
	return b.log.With("provision", s.about.Number, "workspace", s.about.Name, "claim", s.claim)
}

// settleLeftover delivers one spool, once its child has ended. What is wrong
// with a spool is no reason not to start.
func (b *boot) settleLeftover(ctx context.Context, s *spool) error {
	defer s.watch.end() // what is rejected waits for nothing
	log := b.leftoverLog(s)
	err := awaitChild(ctx, s, log)
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		reject(s, log, err)
		b.hand.release(s.claim)
		return nil
	}
	o := b.resume(s, log, s.watch)
	switch {
	case o.err == nil:
		log.Info("delivered what an earlier start left", "lines", o.Lines, "with_result", o.Result != nil)
		if o.Result == nil {
			b.tellUnsaved(ctx, s, log)
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
	b.hand.release(s.claim)
	return nil
}

func removeOrReject(s *spool, log *slog.Logger) {
	if err := s.remove(); err != nil {
		reject(s, log, err)
	}
}

// clearAway ends what runs of earlier boots left running where child and agent
// were both killed, and removes their secrets; it leaves alone what still lives.
func (b *boot) clearAway(ctx context.Context, living []*spool) error {
	lives := func(workspace string) bool {
		return slices.ContainsFunc(living, func(s *spool) bool { return s.about.Workspace.String() == workspace })
	}
	workspaces, err := b.dir.workspaces()
	if err != nil {
		return err
	}
	var engines []string
	for _, workspace := range workspaces {
		if !lives(workspace) {
			engines = append(engines, b.enginesOf(workspace))
		}
	}
	if err := b.endEngines(ctx, b.log, engines...); err != nil {
		return err
	}
	if err := b.endUIDs(ctx, living); err != nil {
		return err
	}
	for _, workspace := range workspaces {
		if lives(workspace) {
			continue
		}
		if err := errors.Join(b.dir.clear(workspace), b.dir.shutFor(workspace)); err != nil {
			b.log.Error("files of earlier runs, with variables, may be left in the data directory", "error", err)
		}
	}
	return nil
}

// forgetSecrets removes the secrets of runs of earlier boots, but not those of a
// child that still lives.
func (b *boot) forgetSecrets(leftovers []*spool) {
	keep := map[string]bool{}
	for _, s := range leftovers {
		if free, err := s.free(); !free && !errors.Is(err, errOdd) {
			keep[s.about.Workspace.String()] = true
		}
	}
	workspaces, err := b.dir.workspaces()
	for _, workspace := range workspaces {
		if !keep[workspace] {
			err = errors.Join(err, b.dir.removeSecrets(workspace))
		}
	}
	if err != nil {
		b.log.Error("files of earlier runs, with variables, may be left in the data directory", "error", err)
	}
}

// endEngines ends engines and all below them. They can be told by where their
// data is.
func (b *boot) endEngines(ctx context.Context, log *slog.Logger, engines ...string) error {
	return b.end(ctx, log, func(ctx context.Context) ([]process.Info, error) { return process.KillByEnvironment(ctx, engines...) })
}

// end has kill end what earlier runs left running. Like their parents, they are
// waited for without a limit.
func (b *boot) end(ctx context.Context, log *slog.Logger, kill func(context.Context) ([]process.Info, error)) error {
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
func awaitChild(ctx context.Context, s *spool, log *slog.Logger) error {
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
