package pool

import (
	"bytes"

	"github.com/tendril-run/tendril/internal/printable"
)

const (
	// maxOutput and maxOutputLines bound what is shown of what one command in a machine prints,
	// in bytes and lines.
	maxOutput, maxOutputLines = 1 << 20, 20_000
	// maxOutputLine is where a line that does not end is broken, in bytes.
	maxOutputLine = 4 << 10
)

// Lines has what a command in a machine prints told, line by line. What is more than a MiB or
// 20,000 lines is dropped, which is said once: a command that prints without end fills
// no log. It is a Writer that never fails, for one goroutine at a time.
type Lines struct {
	Progress Progress

	rest  []byte
	lines int
	bytes int
	cut   bool
}

// Full reports whether nothing more will be shown.
func (l *Lines) Full() bool { return l.bytes >= maxOutput || l.lines >= maxOutputLines }

// Write implements io.Writer.
func (l *Lines) Write(piece []byte) (int, error) {
	taken := piece[:min(len(piece), maxOutput-l.bytes)]
	l.bytes += len(taken)
	l.rest = append(l.rest, taken...)
	for {
		end := bytes.IndexByte(l.rest, '\n')
		after := end + 1
		if end < 0 || end > maxOutputLine {
			if len(l.rest) <= maxOutputLine {
				break
			}
			end, after = maxOutputLine, maxOutputLine
		}
		line := l.rest[:end]
		l.rest = l.rest[after:]
		l.line(line)
	}
	if len(taken) < len(piece) {
		l.Cut()
	}
	return len(piece), nil
}

func (l *Lines) line(text []byte) {
	if l.lines++; l.lines > maxOutputLines {
		l.Cut()
		return
	}
	l.Progress.Log("%s", printable.Text(string(bytes.TrimSuffix(text, []byte("\r")))))
}

// Cut says, once, that the rest is not shown.
func (l *Lines) Cut() {
	if !l.cut {
		l.cut = true
		l.End()
		l.Progress.Log("the command printed more than %d KiB or %d lines; the rest is not shown", maxOutput>>10, maxOutputLines)
	}
}

// End writes the last line, which may have no line break.
func (l *Lines) End() {
	if rest := l.rest; len(rest) > 0 {
		l.rest = nil
		l.line(rest)
	}
}
