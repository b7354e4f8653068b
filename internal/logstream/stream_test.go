package logstream

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// gathering returns a Writer that gathers.
func gathering(tb testing.TB) (*Writer, func() []wire) {
	tb.Helper()
	spool := newSpool(tb)
	w := NewWriter(spool, nil)
	w.Gather()
	return w, func() []wire { return spooled(tb, spool) }
}

// What comes by itself is in the file at once; what follows it quickly comes
// together, and before anything that was said later.
func TestGather(t *testing.T) {
	for name, test := range map[string]struct {
		then func(*testing.T, *Writer)
		want string
	}{
		"a while":        {func(*testing.T, *Writer) { time.Sleep(2 * gatherFor); synctest.Wait() }, `1:STDOUT"1\n"! 2:STDOUT"2\n3\n"`},
		"another stream": {func(t *testing.T, w *Writer) { write(t, w, provision.Stderr, "4\n") }, `1:STDOUT"1\n"! 2:STDOUT"2\n3\n" 3:STDERR"4\n"`},
		"a system line":  {func(_ *testing.T, w *Writer) { w.System("4") }, `1:STDOUT"1\n"! 2:STDOUT"2\n3\n" 3:SYSTEM"4\n"`},
		"an update": {func(t *testing.T, w *Writer) {
			if err := w.Update(provision.Report{Status: provision.Processing}); err != nil {
				t.Fatal(err)
			}
		}, `1:STDOUT"1\n"! 2:STDOUT"2\n3\n" #1`},
		"the end": {func(t *testing.T, w *Writer) {
			if err := w.Update(provision.Report{Status: provision.Success}); err != nil {
				t.Fatal(err)
			}
		}, `1:STDOUT"1\n"! 2:STDOUT"2\n3\n" #1`},
		"a secret": {func(_ *testing.T, w *Writer) { w.Mask("3\n2") }, `1:STDOUT"1\n"! 2:STDOUT"2\n3\n"`},
		"a lot": {func(t *testing.T, w *Writer) { write(t, w, provision.Stdout, strings.Repeat("x", maxGather)) },
			`1:STDOUT"1\n"! 2:STDOUT"2\n3\n" 2:STDOUT"` + strings.Repeat("x", provision.ChunkTarget-4) + `"! 3:STDOUT"xxxx"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, records := gathering(t)
				defer closeWriter(t, w)
				write(t, w, provision.Stdout, "1\n")
				if got, want := shape(records()), `1:STDOUT"1\n"!`; got != want {
					t.Fatalf("after the first line the spool is %s, want %s", got, want)
				}
				write(t, w, provision.Stdout, "2\n")
				write(t, w, provision.Stdout, "3\n")
				if got, want := shape(records()), `1:STDOUT"1\n"!`; got != want {
					t.Fatalf("with two lines gathered the spool is %s, want %s", got, want)
				}
				test.then(t, w)
				if got := shape(records()); got != test.want {
					t.Errorf("the spool is %s, want %s", got, test.want)
				}
			})
		})
	}
}

// Close writes what is gathered.
func TestGatherClose(t *testing.T) {
	t.Parallel()
	w, records := gathering(t)
	for range 3 {
		write(t, w, provision.Stdout, "x\n")
	}
	closeWriter(t, w)
	var text strings.Builder
	for _, r := range records() {
		text.WriteString(r.Text)
	}
	if got, want := text.String(), "x\nx\nx\n"; got != want {
		t.Errorf("the spool holds %q, want %q", got, want)
	}
}

// Streams, SYSTEM lines and updates at the same time: each keeps its order, and
// nothing is lost or there twice.
func TestGatherTogether(t *testing.T) {
	t.Parallel()
	const lines = 5000
	w, records := gathering(t)
	var writers sync.WaitGroup
	for _, s := range []provision.Stream{provision.Stdout, provision.Stderr} {
		writers.Go(func() {
			for i := range lines {
				write(t, w, s, fmt.Sprintf("%d\n", i))
			}
		})
	}
	writers.Go(func() {
		for i := range lines / 10 {
			w.System("%d", i)
			if err := w.Update(provision.Report{Status: provision.Processing}); err != nil {
				t.Error(err)
			}
		}
	})
	writers.Wait()
	closeWriter(t, w)
	text := map[provision.Stream]*strings.Builder{provision.Stdout: {}, provision.Stderr: {}, provision.System: {}}
	for _, r := range records() {
		if r.Stream != "" {
			text[r.Stream].WriteString(r.Text)
		}
	}
	for s, b := range text {
		n := 0
		for line := range strings.Lines(b.String()) {
			if want := fmt.Sprintf("%d\n", n); line != want {
				t.Fatalf("line %d of %s is %q, want %q", n+1, s, line, want)
			}
			n++
		}
		if want := map[bool]int{true: lines / 10, false: lines}[s == provision.System]; n != want {
			t.Errorf("%s has %d lines, want %d", s, n, want)
		}
	}
}
