package terraform

import (
	"io"
	"sync"
)

// output is where lines go. terraform-exec copies stdout and stderr in two
// goroutines and both may end up in one writer (diagnostics come on stdout and
// belong to stderr), so the lock is around both.
//
// A writer's error is kept and never returned to terraform-exec, which would
// stop reading: the pipe would fill and the engine block in the middle of an
// apply.
type output struct {
	mu    sync.Mutex
	sinks [2]io.Writer
	err   error
}

// The two sinks of an output.
const (
	toStdout = 0
	toStderr = 1
)

func newOutput(stdout, stderr io.Writer) *output {
	return &output{sinks: [2]io.Writer{stdout, stderr}}
}

func (o *output) write(sink int, p []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sinks[sink] == nil || len(p) == 0 {
		return
	}
	if _, err := o.sinks[sink].Write(p); err != nil && o.err == nil {
		o.err = err
	}
}

// takeErr returns the first error since it was last called.
func (o *output) takeErr() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	err := o.err
	o.err = nil
	return err
}

func (o *output) stdout() io.Writer {
	return writerFunc(func(p []byte) { o.write(toStdout, p) })
}

// writerFunc is a writer that cannot fail.
type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}
