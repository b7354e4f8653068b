package executor_test

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

// What an earlier run's template has left where runs keep something does not make
// a later one wait.
func TestPipesInTheWorkspace(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, path := range []string{
		filepath.Join(s.job.Dirs.Work, "data"), filepath.Join(s.job.Dirs.Work, "providers"), filepath.Join(s.job.Dirs.Work, "providers.lock.hcl"),
		filepath.Join(s.job.Dirs.Work, "initialised"), filepath.Join(s.job.Dirs.State, ".base"), filepath.Join(s.job.Dirs.State, ".base.new"),
		filepath.Join(s.job.Dirs.State, ".ballast"),
	} {
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.template(map[string]string{"main.tf": `resource "terraform_data" "a" {}`}, nil)
	got, _ := s.run()
	wantEnd(t, got, provision.Success, "")
}
