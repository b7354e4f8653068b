package spool

import (
	"strings"
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
		"a lot": {func(t *testing.T, w *Writer) { write(t, w, provision.Stdout, strings.Repeat("z", maxGather)) },
			`1:STDOUT"1\n"! 2:STDOUT"2\n3\n" 2:STDOUT"` + strings.Repeat("z", provision.ChunkTarget-4) + `"! 3:STDOUT"zzzz"`},
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

// What is gathered is masked by what was known when it was printed, and a secret
// is found over any number of gathered writes.
func TestGatherMasks(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		print []string
		then  string // masked before it is printed
		want  string
	}{
		"before it was known":   {[]string{"x\n", "hunter2\n"}, "y\n", "x\nhunter2\ny\n"},
		"after it was known":    {[]string{"x\n", "y\n"}, "hunter2\n", "x\ny\n***\n"},
		"half of it before":     {[]string{"x\n", "hunt"}, "er2 hunter2\n", "x\nhunter2 ***\n"},
		"over gathered writes":  {[]string{"a secret\n", "s", "esa", "me", " ses", "ame\n"}, "sesame\n", "a secret\n*** ***\n***\n"},
		"held at the end":       {[]string{"x\n", "ses"}, "am", "x\nsesam"},
		"a rune over many":      {[]string{"x\n", "\xf0", "\x9f", "\xa4"}, "\x96\n", "x\n🤖\n"},
		"half a rune at an end": {[]string{"x\n", "\xf0", "\x9f"}, "", "x\n\ufffd\ufffd"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, records := gathering(t)
				w.Mask("sesame")
				for _, text := range test.print {
					write(t, w, provision.Stdout, text)
				}
				w.Mask("hunter2")
				if test.then != "" {
					write(t, w, provision.Stdout, test.then)
				}
				closeWriter(t, w)
				if got := textOf(records(), ""); got != test.want {
					t.Errorf("the spool holds %q, want %q", got, test.want)
				}
			})
		})
	}
}
