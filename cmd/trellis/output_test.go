package main

import (
	"bytes"
	"testing"
	"time"
)

// On a terminal that is too narrow the last cell of a row goes below it, whole;
// elsewhere a row is one line, for programs.
func TestTablesFitTheTerminal(t *testing.T) {
	t.Parallel()
	rows := [][]any{{"a\f", "short"}, {"b\vbb", "a last cell that is long, and has words to break it at, for this is more than 60 columns\x1b[2J"}}
	for _, c := range []struct {
		tty  bool
		want string
	}{
		{true, "NAME  WHERE\na     short\nb bb\n    a last cell that is long, and has words to break it at,\n    for this is more than 60 columns\n"},
		{false, "NAME  WHERE\na     short\nb bb  a last cell that is long, and has words to break it at, for this is more than 60 columns\n"},
	} {
		var out bytes.Buffer
		a := newApp("trellis", func(string) string { return "" }, nil, terminal{Writer: &out, tty: c.tty, width: func() int { return 60 }}, terminal{Writer: &out})
		if err := listing(&a.printer, rows, nil, "none", "NAME\tWHERE", func(cells []any) []any { return cells }); err != nil {
			t.Fatal(err)
		}
		if out.String() != c.want {
			t.Errorf("on a terminal %t: %q, want %q", c.tty, out.String(), c.want)
		}
	}
}

func TestDurations(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{10 * time.Minute: "10m", 90 * time.Minute: "1h30m", 24 * time.Hour: "24h", 366 * 24 * time.Hour: "366 days", 90 * time.Second: "1m30s"} {
		if got := span(d); got != want {
			t.Errorf("span(%s) = %q, want %q", d, got, want)
		}
	}
	for d, want := range map[time.Duration]string{-time.Second: "0.0 s", 100 * time.Second: "1 min", 30 * time.Hour: "30 h", 500 * time.Hour: "20 d"} {
		if got := ago(d); got != want {
			t.Errorf("ago(%s) = %q, want %q", d, got, want)
		}
	}
}
