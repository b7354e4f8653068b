package chaos

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
)

// floodMemory is how much an agent, and a run's process, may take while a log
// of any size passes through.
const floodMemory = 64 << 20

// flood is one provision that has printed a torrent.
type flood struct {
	*works
	torrent
	id    uuid.UUID
	peaks peaks
}

// newFlood runs it to its end. What is kept of its log is the default if limit
// is "".
func newFlood(t *testing.T, f torrent, limit string) flood {
	t.Helper()
	w := newWorks(site.New(t))
	a := w.torrentAgent(f)
	if limit != "" {
		a.Set("TENDRIL_RUN_LOG_LIMIT", limit)
	}
	a.Start()
	stop := watch(a)
	defer stop()
	began := time.Now()
	id := w.DeployTemplate(w.repo, "a", map[string]any{"n": 1, "workspace": "a", "lines": 1, "pause": "0"})
	if got := w.AwaitEnd(id); got != "SUCCESS" {
		t.Fatalf("provision = %s (%s), want SUCCESS", got, w.Message(id))
	}
	took := time.Since(began)
	p := stop()
	a.Terminate()
	if p.agent > floodMemory || p.child > floodMemory || p.agent == 0 || p.child == 0 {
		t.Errorf("%s, want at most %d MB of each process", p, floodMemory>>20)
	}
	printing, err := os.ReadFile(printedIn(w.journal))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d lines, %.1f MB, printed in %s, run over after %s: %s", f.Lines, float64(f.Lines*f.Bytes)/1e6, printing, took.Round(time.Millisecond), p)
	w.count(a)
	return flood{w, f, id, p}
}

// eachLine calls for every line of a log, in order, newline included. A log may
// be larger than memory should hold.
func (w *works) eachLine(id uuid.UUID, call func(string)) {
	w.T.Helper()
	rows, err := w.Conn.Query(w.T.Context(), "SELECT log_chunk FROM public.provision_logs WHERE provision_id = $1 ORDER BY seq", id)
	if err != nil {
		w.T.Fatal(err)
	}
	defer rows.Close()
	var rest string
	for rows.Next() {
		var chunk string
		if err := rows.Scan(&chunk); err != nil {
			w.T.Fatal(err)
		}
		rest += chunk
		for at := strings.IndexByte(rest, '\n'); at >= 0; at = strings.IndexByte(rest, '\n') {
			call(rest[:at+1])
			rest = rest[at+1:]
		}
	}
	if err := rows.Err(); err != nil {
		w.T.Fatal(err)
	}
	if rest != "" {
		call(rest)
	}
}

// whole fails the test unless the log has all lines of the torrent, byte for
// byte, in order and once.
func (f flood) whole() {
	f.T.Helper()
	n := 0
	f.eachLine(f.id, func(line string) {
		if isPrinted(line) {
			n++
			f.compare(n, line)
		}
	})
	if n != f.Lines {
		f.T.Errorf("the log has %d lines, want %d", n, f.Lines)
	}
}

// isPrinted tells what the engine printed from SYSTEM lines.
func isPrinted(line string) bool { return strings.HasPrefix(line, "line ") }

func (f flood) compare(n int, got string) {
	f.T.Helper()
	counted.add("lines compared", 1)
	if want := f.line(n); got != want {
		f.T.Fatalf("line %d of the log is %.60q, want %.60q", n, got, want)
	}
}

// 200 MB, all of which is kept.
func TestLogOf200MB(t *testing.T) {
	t.Parallel()
	f := newFlood(t, torrent{Lines: times(20_000, 200_000), Bytes: 1000}, "512MiB")
	f.whole()
	counted.add("faults: log of very many MB", 1)
}

// Lines of a megabyte each.
func TestLogOfLongLines(t *testing.T) {
	t.Parallel()
	f := newFlood(t, torrent{Lines: times(20, 200), Bytes: 1 << 20}, "512MiB")
	f.whole()
	counted.add("faults: lines of a megabyte", f.Lines)
}

// 100,000 lines a second, for a while.
func TestLogOf100000LinesASecond(t *testing.T) {
	t.Parallel()
	f := newFlood(t, torrent{Lines: times(200_000, 2_000_000), Bytes: 60, PerSecond: 100_000}, "512MiB")
	f.whole()
	counted.add("faults: 100,000 lines a second", 1)
}

// A log larger than what is kept of one: its beginning and its end are there
// whole, samples of its middle, and what is left out is counted.
func TestLogBeyondItsLimit(t *testing.T) {
	t.Parallel()
	limit, config := int64(4<<20), "4MiB"
	if full() {
		limit, config = 64<<20, "" // the default
	}
	f := newFlood(t, torrent{Lines: times(20_000, 200_000), Bytes: 1000, PerSecond: times(8_000, 0)}, config)
	counted.add("faults: log beyond its limit", 1)
	if most := limit + limit/4 + 1<<20; f.peaks.spool > most {
		t.Errorf("spool took %d bytes for a log with a limit of %d, want at most %d", f.peaks.spool, limit, most)
	}
	var head, left, sampled, next int // next: the line that must follow
	var kept int64
	f.eachLine(f.id, func(line string) {
		kept += int64(len(line))
		switch {
		case !isPrinted(line):
			if strings.Contains(line, "half of its limit") {
				head = next
			}
			if strings.Contains(line, "left out of this log") {
				if _, err := fmt.Sscan(line, &left); err != nil {
					t.Errorf("what is left out is told as %q", line)
				}
				next = head + left
			}
		case head > 0 && left == 0: // in between
			sampled++
			if _, err := fmt.Sscanf(line, "line %d", &next); err != nil {
				t.Fatalf("%.60q among the samples", line)
			}
			f.compare(next, line)
		default:
			next++
			f.compare(next, line)
		}
	})
	t.Logf("kept %.1f MB: the first %d lines, %d samples, the last %d", float64(kept)/1e6, head, sampled, f.Lines-head-left)
	if next != f.Lines {
		t.Errorf("the log ends with line %d, want %d", next, f.Lines)
	}
	if head < int(limit)/2/f.Bytes || left == 0 || sampled == 0 || kept > limit+limit/8 {
		t.Errorf("%d lines at the beginning, %d left out, %d samples, %d bytes kept with a limit of %d", head, left, sampled, kept, limit)
	}
}
