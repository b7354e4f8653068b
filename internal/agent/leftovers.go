package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/queue"
)

const (
	// lookAtLock is how often the lock of an old child is tried.
	lookAtLock = 100 * time.Millisecond
	// tellOfLock is how often the log says that it is waited for.
	tellOfLock = 10 * time.Second
)

// settleLeftovers waits for the children of earlier boots, ends what they left
// running, delivers what they left to tell, and has the database end what has
// no result. It ends early with ctx; the next start goes on then.
func (b *boot) settleLeftovers(ctx context.Context, leftovers []*spool) error {
	// Side by side: one that takes long does not keep the others' lines.
	errs := make([]error, len(leftovers)+1)
	var childless, all sync.WaitGroup
	stop := context.AfterFunc(ctx, b.stopDelivering)
	childless.Add(len(leftovers))
	for i, s := range leftovers {
		all.Go(func() { errs[i] = b.settleLeftover(ctx, s, childless.Done) })
	}
	all.Go(func() {
		childless.Wait()
		errs[len(leftovers)] = b.clearAway(ctx)
	})
	all.Wait()
	if stopped := stop(); !stopped {
		return ctx.Err()
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return persist(ctx, func(ctx context.Context) error {
		orphans, err := b.queue.FailOrphans(ctx)
		for _, provision := range orphans {
			b.log.Warn("ended a provision that an earlier start of this agent left without a result", "provision_id", provision)
		}
		return patiently(err)
	})
}

// settleLeftover delivers one spool, once its child has ended. What is wrong
// with a spool is no reason not to start.
func (b *boot) settleLeftover(ctx context.Context, s *spool, ended func()) error {
	log := b.log.With("provision", s.about.Number, "workspace", s.about.Name, "claim", s.claim)
	err := awaitChild(ctx, s, log)
	ended()
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		reject(s, log, err)
		b.hand.release(s.claim)
		return nil
	}
	o := b.resume(s, log)
	switch {
	case o.err == nil:
		log.Info("delivered what an earlier start left", "lines", o.Lines, "with_result", o.Result != nil)
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
// were both killed, and removes their secrets. An engine and all below it can
// be told by where its data is; like their parents, they are waited for without
// a limit.
func (b *boot) clearAway(ctx context.Context) error {
	engines := "TF_DATA_DIR=" + b.dir.path("work") + string(filepath.Separator)
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, tellOfLock)
		found, err := process.KillByEnvironment(limited, engines)
		over := limited.Err() != nil
		cancel()
		for _, p := range found {
			b.log.Warn("ended a process that a run of an earlier start left running", "pid", p.PID, "name", p.Name)
		}
		if err == nil {
			break
		}
		if !over {
			return fmt.Errorf("look for what earlier runs left running: %w", err)
		}
		b.log.Warn("waiting for what earlier runs left running to end before anything is claimed", "error", err)
	}
	if ctx.Err() != nil {
		return ctx.Err() // an old child may live and use them
	}
	if err := b.dir.clearAll(); err != nil {
		b.log.Error("files of earlier runs, with variables, may be left in the data directory", "error", err)
	}
	return nil
}

// awaitChild waits until the child of an earlier boot has ended. Its lifeline
// is cut, so it is ending; how long that takes is up to what it runs. There is
// no limit: a second child must not touch what the first one may still write.
func awaitChild(ctx context.Context, s *spool, log *slog.Logger) error {
	began := time.Now()
	told := began.Add(-tellOfLock)
	for {
		free, err := s.free()
		if err != nil {
			return fmt.Errorf("look whether an earlier run's process lives: %w", err)
		}
		if free {
			return nil
		}
		if time.Since(told) >= tellOfLock {
			told = time.Now()
			log.Warn("waiting for an earlier run's process to end before anything is claimed",
				"since", time.Since(began).Round(time.Second), "lock", s.path(lockSuffix))
		}
		if !wait(ctx, lookAtLock) {
			return ctx.Err()
		}
	}
}
