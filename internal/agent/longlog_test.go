package agent

import (
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// manyLines are far more than a log of the least limit has.
const manyLines = 150_000

// TestEndOfALongLogOutlivesItsProcess: a run that is killed, as by the kernel
// when memory is short, has a log that ends with what it printed last.
func TestEndOfALongLogOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.setup()
	s.LogLimit = 1 << 20
	a := startAgent(t, s)
	id := w.deploy(t, "prod", "print "+strconv.Itoa(manyLines), "die")
	w.becomes(t, id, "FAILED/exec_died")
	log := w.Log(t, id)
	if end := "before it had a result. Apply had not begun, so nothing was changed.\n"; !strings.HasSuffix(log, end) {
		t.Errorf("the log ends with %q, want %q", log[max(0, len(log)-300):], end)
	}
	wantLongLog(t, log)
	a.stops(t)
	w.wantNothingLeft(t)
}

// TestEndOfALongLogOutlivesTheAgent: agent and run are both killed; the agent's
// next start delivers the end of the log, once.
func TestEndOfALongLogOutlivesTheAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.setup()
	s.LogLimit = 1 << 20
	a := startAgent(t, s)
	id := w.deploy(t, "prod", "print "+strconv.Itoa(manyLines), "touch printed", "sleep never")
	child := w.touched(t, "printed")
	a.kill()
	if err := unix.Kill(child, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b := startAgent(t, s)
	w.becomes(t, id, "FAILED/agent_restarted")
	wantLongLog(t, w.Log(t, id))
	b.stops(t)
	w.wantNothingLeft(t)
}

// TestLogBeyondTheDatabasesLimit: an agent whose limit is higher than what the
// database keeps of a log goes on and reports its result; the log has what fits,
// and says that more was printed.
func TestLogBeyondTheDatabasesLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Exec(t, "UPDATE tendril.settings SET log_limit = 100000")
	s := w.setup()
	s.LogLimit = 1 << 20
	a := startAgent(t, s)
	id := w.deploy(t, "prod", "print "+strconv.Itoa(manyLines), "succeed")
	w.becomes(t, id, "SUCCESS")
	head, rest, cut := strings.Cut(w.Log(t, id), "This log has reached ")
	if want := lines(strings.Count(head, "\n")); !cut || head != want || len(head) < 50_000 || strings.Contains(rest, "This log has reached") {
		t.Errorf("the log begins with %d bytes, then says %.300q, want the first 100000 bytes and one line that says what is missing", len(head), rest)
	}
	a.stops(t)
	w.wantNothingLeft(t)
}

// wantLongLog wants the lines from the first on, and those up to the last, once,
// behind a line that says how many are left out.
func wantLongLog(t *testing.T, log string) {
	t.Helper()
	if len(log) > 1<<20+64<<10 {
		t.Errorf("the log has %d bytes, want about its limit", len(log))
	}
	head, rest, limited := strings.Cut(log, "This log has grown to half of its limit of 1.0 MiB.")
	if want := lines(strings.Count(head, "\n")); !limited || head != want {
		t.Errorf("the log begins with %d lines that are not the first", strings.Count(head, "\n"))
	}
	before, tail, ok := strings.Cut(rest, "left out of this log, but for the samples above.")
	if !ok || strings.Contains(tail, "left out of this log") {
		t.Fatalf("the log does not say once what is left out: it goes on %q", rest[:min(300, len(rest))])
	}
	left, err := strconv.Atoi(strings.Fields(before[strings.LastIndex(before, "\n")+1:])[0])
	if err != nil {
		t.Fatal(err)
	}
	_, tail, _ = strings.Cut(tail, "\n")
	first := strings.Count(head, "\n") + left
	if want := lines(manyLines)[len(lines(first)):]; !strings.HasPrefix(tail, want) || len(want) < 1000 {
		t.Errorf("%d lines and %d left out are followed by %.60q, want the %d that remain", strings.Count(head, "\n"), left, tail, manyLines-first)
	}
}
