package terraform

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"unicode/utf8"
)

// output is where lines go. Stdout and stderr are read by two goroutines, and both
// may end up in one writer (diagnostics come on stdout and belong to stderr), so
// the lock is around both.
//
// A writer's error is kept, and reading goes on: else the pipe would fill and the
// engine block in the middle of an apply.
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

// refreshing is what the engine prints for people before it looks at a resource,
// behind its address. Of one that it reads, a data source, it says something
// else. It is text, for with -json a plan would not be readable in the log.
const refreshing = ": Refreshing state..."

// countRefreshes counts the resources that a plan looks at on its way to out.
func countRefreshes(out func([]byte), on func(int)) func([]byte) {
	if on == nil {
		return out
	}
	count := 0
	return func(line []byte) {
		if bytes.Contains(line, []byte(refreshing)) {
			count++
			on(count)
		}
		out(line)
	}
}

// paragraph joins the lines that an engine makes of one paragraph within the frame around
// an error or warning: a secret with a space in it must be found whole. A line is held
// back until the next shows whether it goes on.
type paragraph struct {
	take func(line []byte)
	held []byte // without its end
	last string // its last part, without frame and colours
}

const (
	// frameWidth is how many characters of a paragraph engines print on a line, where
	// their output is no terminal.
	frameWidth = 75
	// maxParagraph bounds what is joined, in bytes.
	maxParagraph = 64 << 10
)

func (p *paragraph) line(line []byte) {
	if !bytes.Contains(line, []byte("│")) {
		p.end()
		p.take(line)
		return
	}
	text, framed := strings.CutPrefix(string(colour.ReplaceAll(bytes.TrimRight(line, "\r\n"), nil)), "│ ")
	switch {
	case !framed:
		p.end()
		p.take(line)
		return
	case p.goesOn(text):
		p.held = append(append(p.held, ' '), text...)
	default:
		p.end()
		p.held = append(p.held, bytes.TrimRight(line, "\r\n")...)
	}
	p.last = text
}

// goesOn reports whether a text is the rest of what is held: an engine breaks a line where
// the next word does not fit, and none that is indented.
func (p *paragraph) goesOn(text string) bool {
	word, _, _ := strings.Cut(text, " ")
	return len(p.held) > 0 && len(p.held) < maxParagraph && p.last != "" && p.last[0] != ' ' && word != "" &&
		utf8.RuneCountInString(p.last)+1+utf8.RuneCountInString(word) > frameWidth
}

// end hands over what is held.
func (p *paragraph) end() {
	if len(p.held) > 0 {
		p.take(append(p.held, '\n'))
		p.held, p.last = p.held[:0], ""
	}
}
