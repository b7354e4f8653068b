package executor

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/spool"
	"github.com/tendril-run/tendril/internal/templatefile"
	"github.com/tendril-run/tendril/internal/terraform"
)

// bareRun is a run without an agent, whose questions are answered with yes.
func bareRun(t *testing.T) *provisionRun {
	t.Helper()
	dir := t.TempDir()
	file, err := os.OpenFile(filepath.Join(dir, "spool"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	log := spool.NewWriter(file, nil)
	control, agent, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(job.NewReader(control), log, timeLimit{}, patience{})
	for n := range int64(5) {
		s.answer(n) <- job.Control{Ack: n}
	}
	files, err := newWorkDir(job.Dirs{Work: filepath.Join(dir, "work"), Secrets: filepath.Join(dir, "work", "secrets"), State: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(files.source, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = agent.Close()
		s.wait()
		if err := errors.Join(log.Close(), control.Close()); err != nil {
			t.Error(err)
		}
		_ = file.Close()
	})
	return &provisionRun{task: &task{session: s, log: log}, files: files, approval: &approval{}}
}

const wholeState = `{"version":4,"serial":3,"lineage":"l","outputs":{},"resources":[]}`

// Whatever the engine leaves of a state has the workspace held.
func TestKeepState(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		file   string // errored.tfstate; none if empty
		dumped string
		bytes  int
		left   bool
		whole  bool
	}{
		"nothing":                             {},
		"a file":                              {file: wholeState, left: true, whole: true},
		"half a file":                         {file: wholeState[:30], left: true},
		"printed":                             {dumped: wholeState, bytes: len(wholeState), left: true, whole: true},
		"half a file, and printed":            {file: wholeState[:30], dumped: wholeState, bytes: len(wholeState), left: true, whole: true},
		"half a file, and printed in part":    {file: wholeState[:30], bytes: 100, left: true},
		"printed in part":                     {bytes: 100, left: true},
		"printed, and too large":              {bytes: terraform.MaxState + 1, left: true},
		"printed, and no state":               {dumped: "null", bytes: 4, left: true},
		"a file, and another printed in part": {file: wholeState, bytes: 100, left: true, whole: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := bareRun(t)
			run := newTerraformRun(given{task: r.task, dir: r.files.source, files: r.files}, &templatefile.File{})
			run.dumpedBytes = test.bytes
			if test.dumped != "" {
				run.dumped = []byte(test.dumped)
			}
			if err := os.WriteFile(run.erroredState(), []byte(test.file), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := r.files.kept.begin(terraform.StateHeader{Version: 4, Serial: 3, Lineage: "l"}); err != nil {
				t.Fatal(err)
			}
			left, err := run.KeepState(reservedIn(r.files.kept.dir))
			if err != nil || left != test.left {
				t.Errorf("KeepState() = %t, %v, want %t", left, err, test.left)
			}
			paths, err := r.files.kept.list()
			if err != nil || len(paths) > 0 != test.left {
				t.Fatalf("kept = %v, %v, want one: %t", paths, err, test.left)
			}
			if !test.left {
				return
			}
			if isState(paths[0]) != test.whole {
				t.Errorf("what is kept is whole: %t, want %t", !test.whole, test.whole)
			}
			if err := r.keptStore().undecided(); (err == nil) != test.whole {
				t.Errorf("undecided() = %v, want a person to decide: %t", err, !test.whole)
			}
			if found, err := r.files.holdsState(); found || err != nil {
				t.Errorf("holdsState() = %t, %v, want nothing left behind in the checkout", found, err)
			}
		})
	}
}
