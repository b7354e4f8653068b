package spool

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

// said counts what each speaker has said, by the returns of its calls. A speaker
// says with each line how far the others were before it.
type said struct{ stdout, stderr, system atomic.Int64 }

func (s *said) line(n int) string {
	return fmt.Sprintf("%d after %d %d %d", n, s.stdout.Load(), s.stderr.Load(), s.system.Load())
}

// Streams, SYSTEM lines and updates at the same time: each keeps its order and
// stands behind all that was said before it began, by anyone; nothing is lost or
// there twice.
func TestGatherTogether(t *testing.T) {
	t.Parallel()
	const lines = 5000
	w, records := gathering(t)
	var all said
	var writers sync.WaitGroup
	for s, done := range map[provision.Stream]*atomic.Int64{provision.Stdout: &all.stdout, provision.Stderr: &all.stderr} {
		writers.Go(func() {
			for n := range lines {
				write(t, w, s, all.line(n)+"\n")
				done.Add(1)
			}
		})
	}
	writers.Go(func() {
		for n := range lines / 10 {
			w.System("%s", all.line(n))
			all.system.Add(1)
			report := processing(provision.StageApply)
			report.Detail.ErrorMessage = all.line(n)
			if _, err := w.UpdateAck(report); err != nil {
				t.Error(err)
			}
		}
	})
	writers.Wait()
	closeWriter(t, w)
	checkSaid(t, records(), map[string]int{"STDOUT": lines, "STDERR": lines, "SYSTEM": lines / 10, "updates": lines / 10})
}

// checkSaid looks at lines of said.line: how many there are of each speaker, and
// that each stands behind what it says it was said after.
func checkSaid(t *testing.T, records []wire, want map[string]int) {
	t.Helper()
	seen := map[string]int{}
	late := 0
	for _, r := range records {
		speaker, text := string(r.Stream), r.Text
		if r.Report != nil {
			speaker, text = "updates", r.Report.Detail.ErrorMessage
		}
		for line := range strings.Lines(text) {
			var n, stdout, stderr, system int
			if _, err := fmt.Sscanf(line, "%d after %d %d %d", &n, &stdout, &stderr, &system); err != nil || n != seen[speaker] {
				t.Fatalf("line %d of %s is %q, %v", seen[speaker], speaker, line, err)
			}
			if stdout > seen["STDOUT"] || stderr > seen["STDERR"] || system > seen["SYSTEM"] {
				late++
			}
			seen[speaker]++
		}
	}
	if late > 0 {
		t.Errorf("%d lines or updates stand before what was said before them", late)
	}
	if fmt.Sprint(seen) != fmt.Sprint(want) {
		t.Errorf("the spool has %v lines, want %v", seen, want)
	}
}
