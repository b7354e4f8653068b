// Package timelimit bounds how long a child process may take, and says so when the
// limit was reached. os/exec reports a child that it killed at the end of a context as
// "signal: killed", which a reader takes for a fault of the program.
//
// It must not know which programs are run.
package timelimit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"
)

// ReachedError is the cause of a context that ended because of its limit.
type ReachedError struct {
	Limit time.Duration
}

func (e *ReachedError) Error() string { return "took longer than " + e.Limit.String() }

// Unwrap has errors.Is take it for any other deadline.
func (e *ReachedError) Unwrap() error { return context.DeadlineExceeded }

// Context is context.WithTimeout, with a ReachedError as the cause.
func Context(parent context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(parent, limit, &ReachedError{Limit: limit})
}

// Pausable is Context with a limit that does not run on between pause and resume, which
// the caller calls in turn.
func Pausable(parent context.Context, limit time.Duration) (ctx context.Context, cancel, pause, resume func()) {
	ctx, end := context.WithCancelCause(parent)
	began, left := time.Now(), limit
	timer := time.AfterFunc(limit, func() { end(&ReachedError{Limit: limit}) })
	pause = func() {
		timer.Stop()
		left -= time.Since(began)
	}
	resume = func() {
		began = time.Now()
		timer.Reset(max(0, left))
	}
	return ctx, func() { timer.Stop(); end(context.Canceled) }, pause, resume
}

// Reached reports whether the context, or one that it comes from, ended because of
// its limit.
func Reached(ctx context.Context) bool {
	_, reached := errors.AsType[*ReachedError](context.Cause(ctx))
	return reached
}

// Why answers why a child that ran with the context failed: the limit, if that was
// reached; the context's cause, if it ended otherwise; else err. Its text completes a
// sentence that begins with the program.
func Why(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case Reached(ctx):
		return context.Cause(ctx)
	case ctx.Err() != nil:
		return fmt.Errorf("was interrupted: %w", context.Cause(ctx))
	}
	return err
}

// Head keeps the beginning of what a child prints and drops the rest: one that prints
// for ever must not take our memory.
type Head struct {
	Limit int // bytes
	b     bytes.Buffer
}

func (h *Head) Write(p []byte) (int, error) {
	h.b.Write(p[:min(len(p), max(0, h.Limit-h.b.Len()))])
	return len(p), nil
}

// Bytes returns what was kept.
func (h *Head) Bytes() []byte { return h.b.Bytes() }

func (h *Head) String() string { return h.b.String() }
