// Package patience says how long a test waits on the machine that it runs on.
//
// A test's limits are written for a machine of two cores that does nothing else.
// A slow or busy machine gets a multiple of them. The multiple is measured: how long a
// process takes to start and a fixed computation to run, against what they take on
// that machine. Limits only end what would never end, so they may be long; what is
// expected to happen soon is waited for, whatever the limit.
//
// The machine is measured when a usual time is over, and again before a limit is
// declared over: load that begins during a test extends the limits that already run.
//
// It must not know what is waited for.
package patience

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// What one measurement takes on an idle machine of two cores.
const (
	startUsually   = 2 * time.Millisecond  // of one process
	computeUsually = 90 * time.Millisecond // see compute
)

// most bounds the factor: a test that hangs must end within the time that CI has.
const most = 8

// machine remembers the slowest measurement of the process. A test process is the
// one place where such a thing cannot be handed down: testing passes nothing to tests.
var machine slowest

// slowest is the largest factor so far.
type slowest struct {
	mu       sync.Mutex
	factor   float64
	measured time.Time
}

// known answers the largest factor so far, and measures if there is none.
func (s *slowest) known() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.factor == 0 {
		s.look()
	}
	return s.factor
}

// seldom is how often at most the machine is measured: many limits may be reached at
// once, and each measurement is load for the others.
const seldom = 5 * time.Second

// again measures once more unless that was just done, and answers the largest factor
// so far.
func (s *slowest) again() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.measured) > seldom && s.factor < most {
		s.look()
	}
	return s.factor
}

func (s *slowest) look() {
	s.factor = max(s.factor, measure())
	s.measured = time.Now()
}

// measure answers how many times slower than usual the machine is now, from 1 to most.
func measure() float64 {
	const starts = 16
	began := time.Now()
	for range starts {
		// A machine without it counts as one on which nothing starts at all: patience
		// is then bounded by most alone.
		if exec.Command("true").Run() != nil { // it ends at once
			return most
		}
	}
	start := time.Since(began) / starts
	return min(most, max(1, (ratio(start, startUsually)+ratio(compute(), computeUsually))/2))
}

func ratio(took, usually time.Duration) float64 { return float64(took) / float64(usually) }

// compute times a fixed computation. The race detector does not slow it down: sha256
// is assembly.
func compute() time.Duration {
	began := time.Now()
	block := make([]byte, 1<<20)
	for range 120 {
		sum := sha256.Sum256(block)
		copy(block, sum[:])
	}
	return time.Since(began)
}

// For answers how long to wait for what takes at most usual on an idle machine.
func For(usual time.Duration) time.Duration {
	return scaled(usual, machine.known())
}

func scaled(usual time.Duration, factor float64) time.Duration {
	return time.Duration(float64(usual) * factor)
}

// Within reports whether what took so long takes at most usual on an idle machine. It measures the
// machine again before it denies that.
func Within(took, usual time.Duration) bool {
	return took <= usual || took <= scaled(usual, machine.known()) || took <= scaled(usual, machine.again())
}

// Fewer answers how many of the repetitions that an idle machine does this one does in
// about the same time, but no fewer than least: for what is drawn at random, where each
// repetition shows something and none shows all.
func Fewer(usual, least int) int {
	return max(least, int(float64(usual)/machine.known()))
}

// Limit is a wait that has begun.
type Limit struct {
	began time.Time
	usual time.Duration
}

// Begin begins to wait for what takes at most usual on an idle machine.
func Begin(usual time.Duration) Limit {
	return Limit{began: time.Now(), usual: usual}
}

// left answers how long to wait still. It does not measure before the usual time is
// over, and measures again before it answers that all of it is.
func (l Limit) left() time.Duration {
	if left := l.usual - time.Since(l.began); left > 0 {
		return left
	}
	if left := scaled(l.usual, machine.known()) - time.Since(l.began); left > 0 {
		return left
	}
	return scaled(l.usual, machine.again()) - time.Since(l.began)
}

// Over reports whether the wait has lasted too long.
func (l Limit) Over() bool { return l.left() <= 0 }

// Pause waits between two looks: a twentieth of the time that was waited already, from 5 ms to
// 50 ms, and after some seconds up to 250 ms. Many tests wait at the same time, and leave the
// machine to what they wait for.
func (l Limit) Pause() {
	waited := time.Since(l.began)
	time.Sleep(max(5*time.Millisecond, min(50*time.Millisecond, waited/20), min(250*time.Millisecond, waited/100)))
}

// Context returns a context that ends when what takes at most usual on an idle
// machine has lasted too long. Its cause says so.
func Context(parent context.Context, usual time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	limit := Begin(usual)
	var timer *time.Timer
	var mu sync.Mutex
	look := func() {
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		if left := limit.left(); left > 0 {
			timer.Reset(left)
			return
		}
		cancel(fmt.Errorf("not done after %s: %w", time.Since(limit.began).Round(time.Second), context.DeadlineExceeded))
	}
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(usual, look)
	return ctx, func() {
		timer.Stop()
		cancel(context.Canceled)
	}
}

// After returns a channel that is closed when what takes at most usual on an idle
// machine has lasted too long.
func After(usual time.Duration) <-chan struct{} {
	ctx, _ := Context(context.Background(), usual) // it ends by itself
	return ctx.Done()
}

// Await waits until a condition holds, which it looks at often, and fails the test when
// that takes too long: what takes at most two minutes on an idle machine.
func Await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	AwaitShowing(t, what, nil, holds)
}

// AwaitShowing is Await; when it waited in vain it shows what there is.
func AwaitShowing(t testing.TB, what string, there func() string, holds func() bool) {
	t.Helper()
	for limit := Begin(2 * time.Minute); !holds(); limit.Pause() {
		switch {
		case !limit.Over():
		case there == nil:
			t.Fatalf("waited in vain for %s", what)
		default:
			t.Fatalf("waited in vain for %s; there is:\n%s", what, there())
		}
	}
}
