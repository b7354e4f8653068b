package providers

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/providertest"
)

// Eight runs of eight workspaces in processes of their own, half of them killed
// in the middle of the first download and then at every later stage.
func TestConcurrentInitsAndKills(t *testing.T) {
	t.Parallel()
	for name, lockedTo := range map[string]string{"locked": newest, "lockless": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			dirs := make([]string, 8)
			for i := range dirs {
				dirs[i] = s.workspace(lockedTo)
			}

			s.mirror.Hold()
			runs := s.startAll(dirs)
			s.mirror.AwaitDownloads(t, len(dirs))
			for _, run := range runs[:4] {
				s.kill(run)
			}
			if got := s.packages(); len(got) != 0 {
				t.Errorf("killed inits left %v in the store, want nothing", got)
			}
			s.mirror.Release()
			s.wantSuccess(runs[4:])
			s.wantStored(newest)
			s.wantDownloads(len(dirs))
			program := filepath.Join(s.path(newest), providertest.ProgramName(newest))
			before := identity(t, program)

			// Warm: killed when init begins, when it is about to end, in apply.
			at, _ := newSlot("registry.terraform.io/hashicorp/time", newest)
			for round := range 2 {
				runs = s.startAll(dirs)
				for i, moment := range []string{
					at.in(filepath.Join(dirs[0], "providers")),
					at.in(filepath.Join(dirs[1], "data", "providers")),
					filepath.Join(dirs[2], "source", "terraform.tfstate"),
				} {
					if round == 0 {
						s.await(moment)
						s.kill(runs[i])
					}
				}
				s.wantSuccess(runs[3*(1-round):])
			}
			s.wantDownloads(len(dirs))
			s.wantStored(newest)
			if after := identity(t, program); after != before {
				t.Errorf("the stored program was touched: %v, want %v", after, before)
			}
		})
	}
}

func (s *site) startAll(dirs []string) []*exec.Cmd {
	s.t.Helper()
	runs := make([]*exec.Cmd, len(dirs))
	for i, dir := range dirs {
		runs[i] = s.start(dir)
	}
	return runs
}

func (s *site) wantSuccess(runs []*exec.Cmd) {
	s.t.Helper()
	for i, run := range runs {
		if err := run.Wait(); err != nil {
			s.t.Errorf("run %d ended with %v, want success", i, err)
		}
	}
}
