package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// settle deals with the spool of a run whose delivery has ended.
func (r *run) settle(s *spool, o *outcome) {
	switch {
	case o.err == nil && o.Result != nil:
		r.log.Info("ended", "status", o.Result.Status, "error_code", o.Result.Detail.ErrorCode, "lines", o.Lines, "bytes", o.Bytes)
		r.remove(s)
	case r.boot.delivery.Err() != nil:
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
	err := persist(r.boot.delivery, func(ctx context.Context) error {
		return patiently(r.boot.queue.Report(ctx, r.assignment.ClaimID, report))
	})
	if err != nil {
		r.log.Error("the run's end could not be reported", "error", err)
		return
	}
	r.watch.ended(report)
}

// failed is the report of a run that Tendril itself failed on.
func failed(message string) provision.Report {
	return provision.Report{Status: provision.Failed, Detail: provision.Detail{
		ErrorCode: provision.CodeInternal, ErrorMessage: message,
	}}
}

// persist repeats a call until the database accepts or refuses it.
func persist(ctx context.Context, call func(context.Context) error) error {
	retry := newRetry()
	for {
		err := call(ctx)
		if err == nil || queue.Final(err) {
			return err
		}
		if !wait(ctx, queue.Wait(err, retry.NextBackOff())) {
			return errors.Join(ctx.Err(), err)
		}
	}
}

// dismiss deals with a spool whose claim is lost. A result that comes too late
// to count is told of and no more, for all its lines are stored.
func dismiss(s *spool, log *slog.Logger, o *outcome) {
	if o.Unwanted == nil {
		reject(s, log, o.err)
		return
	}
	log.Warn("its result came too late to count", "status", o.Unwanted.Status, "error_code", o.Unwanted.Detail.ErrorCode, "refused", o.err)
	removeOrReject(s, log)
}

func (r *run) remove(s *spool) {
	if err := s.remove(); err != nil {
		r.log.Error("the spool could not be removed", "error", err)
	}
}

// reject keeps for people a spool that cannot be delivered.
func reject(s *spool, log *slog.Logger, why error) {
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
