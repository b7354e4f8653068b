package terraform

import (
	"context"
	"sync"
)

// gate is the context an engine runs under. It passes the caller's
// cancellation on, but not before terraform-exec waits for the process: right
// after starting it, terraform-exec looks at the context's error, and if there
// is one it returns and forgets the engine, which goes on without anybody
// reading or reaping it. That look is the first call of Err, so Err answers nil
// then, and Done closes no earlier.
type gate struct {
	context.Context // the caller's values, without its cancellation

	first   sync.Once
	started chan struct{} // Err was called: the process, if any, is started
	onStart func()

	stop   chan error    // a reason of our own to interrupt
	done   chan struct{} // closed when the engine is to be interrupted
	closed chan struct{}
	wait   sync.WaitGroup
	reason error // why, if it was not the caller; read after fired
}

// newGate returns a gate in front of ctx; close it. onStart is called on the
// thread that started the engine, as soon as it is started.
func newGate(ctx context.Context, onStart func()) *gate {
	g := &gate{
		Context: context.WithoutCancel(ctx),
		started: make(chan struct{}),
		onStart: onStart,
		stop:    make(chan error, 1),
		done:    make(chan struct{}),
		closed:  make(chan struct{}),
	}
	g.wait.Go(func() { g.relay(ctx) })
	return g
}

func (g *gate) relay(ctx context.Context) {
	select {
	case <-ctx.Done():
	case g.reason = <-g.stop:
	case <-g.closed:
		return
	}
	select {
	case <-g.started:
	case <-g.closed:
		return
	}
	close(g.done)
}

// Done is closed when the engine is to be interrupted.
func (g *gate) Done() <-chan struct{} { return g.done }

// Err is nil until Done is closed, and at its first call in any case.
func (g *gate) Err() error {
	looked := false
	g.first.Do(func() {
		looked = true
		g.onStart()
		close(g.started)
	})
	if !looked && g.fired() {
		return context.Canceled
	}
	return nil
}

// fired reports whether the engine was told to stop.
func (g *gate) fired() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

// interrupt stops the engine for a reason of our own. Only the first counts.
func (g *gate) interrupt(reason error) {
	select {
	case g.stop <- reason:
	default:
	}
}

// close ends the gate's goroutine.
func (g *gate) close() {
	close(g.closed)
	g.wait.Wait()
}
