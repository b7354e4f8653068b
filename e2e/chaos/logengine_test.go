package chaos

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/tendril-run/tendril/e2e/site"
)

// torrentEnv tells the fake engine what to print, in the words of torrent.
const torrentEnv = "TEST_TORRENT"

// torrent is what a fake engine prints during its apply: Terraform itself
// cannot print that fast.
type torrent struct {
	Lines int
	Bytes int // of each, its newline included; at least 16
	// PerSecond is how many lines a second are printed; 0: as fast as they are taken.
	PerSecond int
}

func (f torrent) String() string { return fmt.Sprintf("%d %d %d", f.Lines, f.Bytes, f.PerSecond) }

// line is the n-th line, from 1, newline included.
func (f torrent) line(n int) string { return string(f.append(nil, n)) + "\n" }

// append appends the n-th line without its newline.
func (f torrent) append(to []byte, n int) []byte {
	end := len(to) + f.Bytes - 1
	to = append(strconv.AppendInt(append(to, "line "...), int64(n), 10), ' ')
	for len(to) < end {
		to = append(to, byte('a'+n%26))
	}
	return to
}

// isEngine reports whether this process is to be the fake engine, which is
// what a copy of this program under an engine's name is.
func isEngine() bool { return filepath.Base(os.Args[0]) == "terraform" }

// playEngine is the main of a fake engine that has one change to make, and
// prints a torrent while it makes it.
func playEngine(args []string, out io.Writer) (code int) {
	switch args[0] {
	case "version":
		_, _ = fmt.Fprintln(out, `{"terraform_version":"1.11.4","provider_selections":{}}`)
	case "plan":
		// What is printed here is no events but text for people, of any bytes.
		if text, err := os.ReadFile(rawIn(os.Getenv("TEST_JOURNAL"))); err == nil {
			_, _ = out.Write(text)
		}
		return 2 // there are changes
	case "show":
		_, _ = fmt.Fprintln(out, `{"format_version":"1.2","terraform_version":"1.11.4"}`)
	case "apply":
		var f torrent
		if _, err := fmt.Sscan(os.Getenv(torrentEnv), &f.Lines, &f.Bytes, &f.PerSecond); err != nil {
			return 1
		}
		began := time.Now()
		if err := f.print(out); err != nil {
			return 1
		}
		if err := os.WriteFile(printedIn(os.Getenv("TEST_JOURNAL")), []byte(time.Since(began).String()), 0o600); err != nil {
			return 1
		}
	}
	return 0
}

// rawIn is the file with what a plan prints.
func rawIn(journal string) string { return filepath.Join(journal, "raw") }

// printedIn is the file in which the engine notes how long it printed.
func printedIn(journal string) string { return filepath.Join(journal, "printed-in") }

// print writes the lines as events of Terraform's machine-readable output. At
// a given rate it writes what has become due each time it looks; when what
// takes them is slower than that, what is due is written without a pause.
func (f torrent) print(out io.Writer) error {
	w := bufio.NewWriterSize(out, 64<<10)
	began := time.Now()
	var event []byte
	for n := range f.Lines {
		if f.PerSecond > 0 && n%100 == 0 {
			due := began.Add(time.Duration(n) * time.Second / time.Duration(f.PerSecond))
			if wait := time.Until(due); wait > time.Millisecond {
				if err := w.Flush(); err != nil {
					return err
				}
				time.Sleep(wait) // the engine's pace, not the test's
			}
		}
		event = append(event[:0], `{"@level":"info","@message":"`...)
		event = append(f.append(event, n+1), `","@module":"terraform.ui","@timestamp":"2026-01-02T03:04:05.000000Z","type":"log"}`+"\n"...)
		if _, err := w.Write(event); err != nil {
			return err
		}
	}
	return w.Flush()
}

// torrentAgent configures an agent whose engine is the fake one.
func (w *works) torrentAgent(f torrent) *site.Agent {
	w.T.Helper()
	a := w.agent("one", 1, w.SharedState())
	f.of(w.T, a)
	return a
}

// of gives an agent the fake engine, and has it run without the race detector: races in
// what handles a log are found by the other tests.
func (f torrent) of(t testing.TB, a *site.Agent) {
	t.Helper()
	a.Binary = site.Plain(t)
	a.Set("TENDRIL_ENGINE_DIR", engineDir(t))
	a.Set(torrentEnv, f.String())
}

// engineDir is a directory with a copy of this program as the engine.
func engineDir(t testing.TB) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	from, err := os.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close() //nolint:errcheck // only read
	dir := t.TempDir()
	to, err := os.OpenFile(filepath.Join(dir, "terraform"), os.O_WRONLY|os.O_CREATE, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}
