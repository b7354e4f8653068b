package executor_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/providers/providertest"
	"github.com/tendril-run/tendril/internal/provision"
)

const withProvider = `
terraform {
  required_providers {
    time = { source = "hashicorp/time" }
  }
}
resource "time_static" "now" {}
output "year" { value = time_static.now.year }
`

// Two workspaces of one agent, each run twice, with an operator's mirror.
func TestWorkspacesShareProviders(t *testing.T) {
	t.Parallel()
	mirror := providertest.NewMirror(t)
	s := newSite(t)
	s.env = mirror.Env()
	s.template(map[string]string{"main.tf": withProvider}, nil)
	first := s.job
	for _, work := range []string{"first", "second"} {
		s.job = first
		s.job.Assignment.WorkspaceID = uuid.New()
		s.job.Dirs.Work, s.job.Dirs.State = filepath.Join(s.dirs, work), filepath.Join(s.dirs, work+"-state")
		s.job.Dirs.Secrets = filepath.Join(s.job.Dirs.Work, "secrets")
		for _, dir := range []string{s.job.Dirs.Work, s.job.Dirs.State} {
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			got, _ := s.run()
			wantEnd(t, got, provision.Success, "")
			s.wantNothingLeft()
		}
	}
	if got := mirror.Downloads(); got != 1 {
		t.Errorf("%d downloads by two workspaces, want 1", got)
	}
	stored, err := filepath.Glob(filepath.Join(s.job.Dirs.Providers, "registry.terraform.io", "hashicorp", "time", providertest.Version, "*", "*"))
	if err != nil || len(stored) != 1 {
		t.Errorf("stored = %v, %v, want one package", stored, err)
	}
}
