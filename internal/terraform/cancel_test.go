package terraform

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

var errStop = errors.New("a person asked for it")

// applyAsync runs an apply and returns how to cancel it and wait for it.
func applyAsync(t *testing.T, r *Runner) (cancel context.CancelCauseFunc, wait func() (Applied, error)) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	type result struct {
		applied Applied
		err     error
	}
	done := make(chan result, 1)
	go func() {
		applied, err := r.Apply(ctx, ApplyOptions{PlanFile: "p"})
		done <- result{applied, err}
	}()
	return cancel, func() (Applied, error) {
		t.Helper()
		select {
		case got := <-done:
			return got.applied, got.err
		case <-patience.After(time.Minute):
			t.Fatal("Apply did not return within a minute")
			return Applied{}, nil
		}
	}
}

func TestCancelSendsExactlyOneInterrupt(t *testing.T) {
	t.Parallel()
	f, r := newFake(t, "counts-interrupts", Options{})
	cancel, wait := applyAsync(t, r)
	f.await("pid")
	cancel(errStop)
	f.await("interrupts")
	cancel(errors.New("again"))
	f.release()
	if _, err := wait(); !errors.Is(err, errStop) {
		t.Errorf("Apply() error = %v, want one that wraps %q", err, errStop)
	}
	if got := f.lines("interrupts"); got != 1 {
		t.Errorf("the engine got %d interrupts, want 1", got)
	}
}

// Cancelled while it starts, an engine is not forgotten: running, unread, not reaped.
func TestCancelDuringStartForgetsNoProcess(t *testing.T) {
	t.Parallel()
	f, r := newFake(t, "counts-interrupts", Options{})
	f.release() // ends at once, whether it sees the interrupt or not
	for range 60 {
		ctx, cancel := context.WithCancel(t.Context())
		timer := time.AfterFunc(rand.N(2*time.Millisecond), cancel)
		// It would fail by itself, so success means that it never ran.
		if _, err := r.Apply(ctx, ApplyOptions{PlanFile: "p"}); err == nil {
			t.Error("Apply() error = nil, want one")
		}
		timer.Stop()
		cancel()
		// The thread may be another one by now: look at all of ours.
		for _, pid := range childrenOf(t, r.dir) {
			t.Fatalf("Apply() returned while its engine %d was there", pid)
		}
	}
}

// childrenOf lists our children that run in a directory.
func childrenOf(t *testing.T, dir string) []int {
	t.Helper()
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, list := range lists {
		content, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for _, field := range strings.Fields(string(content)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			if cwd, err := os.Readlink(filepath.Join("/proc", field, "cwd")); err == nil && cwd == dir {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func TestWorkFinishedDespiteCancelIsSuccess(t *testing.T) {
	t.Parallel()
	f, r := newFake(t, "finishes", Options{})
	cancel, wait := applyAsync(t, r)
	f.await("pid")
	cancel(errStop)
	applied, err := wait()
	if err != nil || applied.Add != 1 {
		t.Errorf("Apply() = %+v, %v, want 1 added and no error", applied, err)
	}
}

func TestReturnsWhenTheCallerHasKilledASetsidGrandchild(t *testing.T) {
	t.Parallel()
	f, r := newFake(t, "stubborn", Options{})
	cancel, wait := applyAsync(t, r)
	engine, grandchild := f.awaitPID("pid"), f.awaitPID("grandchild")
	cancel(errStop)
	if !alive(engine) || !alive(grandchild) {
		t.Errorf("alive after the interrupt: engine %v, grandchild %v, want both", alive(engine), alive(grandchild))
	}
	for _, pid := range []int{engine, grandchild} {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := wait(); !errors.Is(err, errStop) {
		t.Errorf("Apply() error = %v, want one that wraps %q", err, errStop)
	}
}

func TestKillAfterEndsAStubbornEngine(t *testing.T) {
	t.Parallel()
	f, r := newFake(t, "stubborn", Options{KillAfter: time.Millisecond})
	cancel, wait := applyAsync(t, r)
	engine, grandchild := f.awaitPID("pid"), f.awaitPID("grandchild")
	cancel(errStop)
	patience.Await(t, "the engine is killed", func() bool { return !alive(engine) })
	if !alive(grandchild) {
		t.Error("the grandchild is gone, want the engine alone killed")
	}
	if err := syscall.Kill(grandchild, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := wait(); !errors.Is(err, errStop) {
		t.Errorf("Apply() error = %v, want one that wraps %q", err, errStop)
	}
}

func TestStragglersAreReported(t *testing.T) {
	t.Parallel()
	var f fake
	var once sync.Mutex
	once.Lock()
	opts := Options{Stragglers: func() {
		once.Lock() // f is set
		defer once.Unlock()
		_ = syscall.Kill(f.awaitPID("grandchild"), syscall.SIGKILL)
	}}
	var r *Runner
	f, r = newFake(t, "leaves", opts)
	once.Unlock()
	_, wait := applyAsync(t, r)
	if applied, err := wait(); err != nil || applied.Add != 1 {
		t.Errorf("Apply() = %+v, %v, want 1 added and no error", applied, err)
	}
}

// The engine is killed when the thread that started it ends; goroutines that end
// while locked to a thread end that thread.
func TestEngineOutlivesOtherThreads(t *testing.T) {
	t.Parallel()
	f, r := newFake(t, "waits", Options{})
	_, wait := applyAsync(t, r)
	f.await("pid")
	for range 20 {
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() {
				runtime.LockOSThread() // not unlocked: the thread ends with us
				time.Sleep(time.Millisecond)
			})
		}
		wg.Wait()
	}
	f.release()
	if _, err := wait(); err != nil {
		t.Errorf("Apply() error = %v, want nil", err)
	}
}

func TestCancelledBeforeItBegan(t *testing.T) {
	t.Parallel()
	f, r := newFake(t, "waits", Options{})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errStop)
	if err := r.Init(ctx, InitOptions{}); !errors.Is(err, errStop) {
		t.Errorf("Init() error = %v, want one that wraps %q", err, errStop)
	}
	if got := f.read("calls"); got != "" {
		t.Errorf("the engine was called: %q, want not at all", got)
	}
}
