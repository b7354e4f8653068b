package executor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/spool"
)

// reported is what the spool has after a progress was used.
func reported(t *testing.T, use func(*session)) string {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(t.TempDir(), "spool"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		log := spool.NewWriter(file, nil)
		use(&session{log: log})
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	content, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// A plan that is quick costs no report, and a long one four a second.
func TestQuietProgress(t *testing.T) {
	t.Parallel()
	got := reported(t, func(s *session) {
		p := newQuiet(s)
		p.reach(50)
		p.close()
	})
	if got != "" {
		t.Errorf("reports of a quick plan = %s, want none", got)
	}
	got = reported(t, func(s *session) {
		p := newQuiet(s)
		for i := range 100 { // 10 ms each
			p.reach(i)
			time.Sleep(progressEvery / 25)
		}
		synctest.Wait()
		p.close()
	})
	if n := strings.Count(got, `"percent"`); n != 3 && n != 4 || strings.Contains(got, "running") {
		t.Errorf("reports of a plan of a second = %s, want about four, of the percentage alone", got)
	}
}

// However many events there are, and whatever the engine was stopped at.
func TestProgressIsBounded(t *testing.T) {
	t.Parallel()
	got := reported(t, func(s *session) {
		p := newProgress(s)
		for range 1000 {
			p.on(provision.Event{Kind: "resource_started", Address: "a.b", Action: "create", At: time.Now()}, 1)
		}
		time.Sleep(time.Second)
		p.close()
	})
	lines := strings.Split(strings.TrimSpace(got), "\n")
	for _, line := range lines {
		if n := strings.Count(line, "resource_started"); n > maxEvents {
			t.Errorf("a report has %d events, want at most %d", n, maxEvents)
		}
		if n := strings.Count(line, `"since"`); n > maxRunning {
			t.Errorf("a report has %d resources that are running, want at most %d", n, maxRunning)
		}
	}
	if len(lines) > 8 || !strings.Contains(lines[len(lines)-1], `"running":[]`) {
		t.Errorf("%d reports, the last %s, want one for each %d events and one that nothing runs", len(lines), lines[len(lines)-1], maxEvents)
	}
}
