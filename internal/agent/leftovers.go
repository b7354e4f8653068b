package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/queue"
)

const (
	// lookAtLock is how often the lock of an old child is tried.
	lookAtLock = 100 * time.Millisecond
	// tellOfLock is how often the log says that it is waited for.
	tellOfLock = 10 * time.Second
)

// settleLeftovers waits for the children of earlier boots, delivers what they
// left, and has the database end what has no result. It ends early with ctx;
// the next start goes on then.
func (b *boot) settleLeftovers(ctx context.Context, leftovers []*spool) error {
	// Side by side: one that takes long does not keep the others' lines.
	errs := make([]error, len(leftovers))
	var all sync.WaitGroup
	stop := context.AfterFunc(ctx, b.stopDelivering)
	for i, s := range leftovers {
		all.Go(func() { errs[i] = b.settleLeftover(ctx, s) })
	}
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

// settleLeftover delivers one spool.
func (b *boot) settleLeftover(ctx context.Context, s *spool) error {
	log := b.log.With("provision", s.about.Number, "workspace", s.about.Name, "claim", s.claim)
	if err := awaitChild(ctx, s, log); err != nil {
		return err
	}
	o := b.resume(s, log)
	switch {
	case o.err == nil:
		log.Info("delivered what an earlier start left", "lines", o.Lines, "with_result", o.Result != nil)
		if err := s.remove(); err != nil {
			return fmt.Errorf("remove a delivered spool: %w", err)
		}
	case errors.Is(o.err, fs.ErrNotExist):
		// The start before ended between making one file and the next.
		if err := s.remove(); err != nil {
			return fmt.Errorf("remove an empty spool: %w", err)
		}
	case ctx.Err() != nil:
		return ctx.Err()
	case queue.KindOf(o.err) == queue.Superseded:
		return o.err
	default:
		reject(s, log, o.err)
	}
	b.hand.release(s.claim)
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
