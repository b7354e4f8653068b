package pool

import (
	"fmt"
	"strings"
	"testing"
)

// told keeps what is logged.
type told struct {
	Progress
	lines []string
}

func (t *told) Log(format string, args ...any) {
	t.lines = append(t.lines, fmt.Sprintf(format, args...))
}

func TestLines(t *testing.T) {
	t.Parallel()
	out := &told{}
	lines := Lines{Progress: out}
	for _, piece := range []string{"one\r\ntw", "o\n\nbad \xff\n", strings.Repeat("x", maxOutputLine+1), "y\nlast"} {
		if n, err := lines.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Errorf("Write() = %d, %v, want all %d bytes", n, err, len(piece))
		}
	}
	lines.End()
	want := []string{"one", "two", "", "bad \uFFFD", strings.Repeat("x", maxOutputLine), "xy", "last"}
	if got := strings.Join(out.lines, "\n"); got != strings.Join(want, "\n") || lines.Full() {
		t.Errorf("lines are %.80q…, want %.80q…", got, strings.Join(want, "\n"))
	}
	const rest = "the command printed more than 1024 KiB or 20000 lines; the rest is not shown"
	for name, c := range map[string]struct {
		piece string
		most  int
	}{"lines": {"\n", maxOutputLines}, "bytes": {strings.Repeat("x", 1023) + "\n", maxOutput >> 10}} {
		out = &told{}
		lines = Lines{Progress: out}
		for range c.most + 5 {
			_, _ = lines.Write([]byte(c.piece)) // it never fails
		}
		lines.End()
		lines.Cut()
		if len(out.lines) != c.most+1 || out.lines[c.most] != rest || !lines.Full() {
			t.Errorf("%s: %d lines are logged, the last %q, want %d and %q", name, len(out.lines), out.lines[len(out.lines)-1], c.most, rest)
		}
	}
}
