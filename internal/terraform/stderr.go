package terraform

import (
	"io"
	"sync/atomic"
)

// maxKeptStderr is how much of an engine's stderr terraform-exec may see, in
// bytes. It keeps all of it in memory, in a builder that doubles.
const maxKeptStderr = 4 << 20

// stderrReader takes the engine's stderr from terraform-exec, line by line.
// When there is too much of it, it goes behind terraform-exec's back and reads
// the pipe itself to its end, so that a flood costs no memory. The few
// kilobytes that terraform-exec has buffered by then come last.
type stderrReader struct {
	out   *output
	diags *diagnostics
	pid   atomic.Int64 // the engine; 0 while unknown
	seen  int
}

func (s *stderrReader) Write(p []byte) (int, error) {
	s.diags.addStderr(p)
	s.out.write(toStderr, p)
	if s.seen += len(p); s.seen > maxKeptStderr {
		s.drain()
	}
	return len(p), nil
}

// drain reads until every process has closed the pipe. Where the pipe cannot
// be opened, memory is the price and the log is still complete.
func (s *stderrReader) drain() {
	pipe, err := openStderr(int(s.pid.Load()))
	if err != nil {
		return
	}
	defer pipe.Close() //nolint:errcheck // opened for reading
	// A read error ends the drain and terraform-exec reads on.
	_, _ = io.Copy(writerFunc(func(p []byte) { s.out.write(toStderr, p) }), pipe)
}
