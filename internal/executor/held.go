package executor

import (
	"io"
	"strings"
	"sync"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/spool"
)

// held keeps back what a program writes for people while it may make passwords: the agent
// learns of them from its answer, and a line that is in the log by then can't be masked any
// more. Open passes everything on at once, for a program that makes none. The lines stay in
// memory.
type held struct {
	log  *spool.Writer
	open bool

	mu      sync.Mutex
	lines   []heldLine
	size    int // bytes in lines
	dropped int // bytes that there was no room for
}

type heldLine struct {
	to   provision.Stream
	text string
}

// maxHeld is how much is kept back, in bytes: the last of it.
const maxHeld = 1 << 20

// maxWithheld is how much a state keeps of what a program said that gave no answer, in bytes.
const maxWithheld = 16 << 10

// stream is where a program, or what it sends as its log, is written to.
func (h *held) stream(to provision.Stream) io.Writer {
	if h.open {
		return h.log.Stream(to)
	}
	return heldStream{h, to}
}

type heldStream struct {
	*held
	to provision.Stream
}

func (s heldStream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, heldLine{s.to, string(p)})
	for s.size += len(p); s.size > maxHeld; s.lines = s.lines[1:] {
		s.size -= len(s.lines[0].text)
		s.dropped += len(s.lines[0].text)
	}
	return len(p), nil
}

// release writes what was kept back to the log, once all secrets in it are masked there and
// the program has ended.
func (h *held) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dropped > 0 {
		h.log.System("The first %d bytes of what it wrote are left out.", h.dropped)
	}
	for _, line := range h.lines {
		_, _ = io.WriteString(h.log.Stream(line.to), line.text) // the log keeps its own errors
	}
	h.lines = nil
}

// withhold drops what was kept back, and returns the end of it.
func (h *held) withhold() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var text strings.Builder
	for _, line := range h.lines {
		text.WriteString(line.text)
	}
	h.lines = nil
	all := text.String()
	return strings.ToValidUTF8(all[max(0, len(all)-maxWithheld):], "")
}
