package executor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/providers"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/providertest"
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
func TestWorkspacesShareProviders(t *testing.T) { bothEngines(t, testWorkspacesShareProviders) }

func testWorkspacesShareProviders(t *testing.T, kind string) {
	t.Parallel()
	mirror := providertest.NewMirror(t)
	s := newSiteOf(t, kind)
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
	stored, err := filepath.Glob(filepath.Join(s.job.Dirs.Providers, map[string]string{"terraform": "registry.terraform.io", "tofu": "registry.opentofu.org"}[kind], "hashicorp", "time", providertest.Version, "*", "*"))
	if err != nil || len(stored) != 1 {
		t.Errorf("stored = %v, %v, want one package", stored, err)
	}
}

// Lock files as they come with a template, on the platform of this test.
func TestLockFiles(t *testing.T) {
	t.Parallel()
	const address = "registry.terraform.io/hashicorp/time"
	// Of an unpacked package on another platform, and of an archive for one.
	const foreignH1, foreignZH = "h1:AjY2lOPKEES+bHE7rbeXuwJGz2qmkwgh0kt1jHz3RGY=", "zh:00aa0000000000000000000000000000000000000000000000000000000000aa"
	tests := []struct {
		name string
		lock func(h1, zh string) string
		want []string // in the message of a run that must fail
		// downloads by two runs, if they succeed
		downloads int
	}{
		{name: "complete", downloads: 1,
			lock: func(h1, zh string) string { return lockOf(address, providertest.Version, h1, foreignZH, zh) }},
		{name: "made on another platform", downloads: 2,
			lock: func(_, zh string) string { return lockOf(address, providertest.Version, foreignH1, foreignZH, zh) }},
		{name: "with a provider that is not needed", downloads: 1,
			lock: func(h1, _ string) string {
				return lockOf("registry.terraform.io/hashicorp/null", "3.2.4", foreignH1) + lockOf(address, providertest.Version, h1)
			}},
		{name: "wrong checksum of the archive", want: []string{address + " " + providertest.Version, "checksums"},
			lock: func(_, _ string) string { return lockOf(address, providertest.Version, foreignH1, foreignZH) }},
		{name: "provider not locked", want: []string{"the template needs " + address + ", which the lock file does not name", "commit .terraform.lock.hcl"},
			lock: func(_, _ string) string { return lockOf("registry.terraform.io/hashicorp/null", "3.2.4", foreignH1) }},
		{name: "version that is not to be had", want: []string{"hashicorp/time", "version 0.14.1 is no longer available"},
			lock: func(h1, zh string) string { return lockOf(address, "0.14.1", h1, zh) }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			mirror := providertest.NewMirror(t)
			h1 := mirror.Unpack(t, providertest.Version, t.TempDir())
			s := newSite(t)
			s.env = mirror.Env()
			s.template(map[string]string{"main.tf": withProvider, providers.LockFileName: test.lock(h1, mirror.ArchiveHash(providertest.Version))}, nil)
			got, c := s.run()
			if test.want != nil {
				wantEnd(t, got, provision.Failed, provision.CodeInitFailed)
				for _, part := range test.want {
					if !strings.Contains(got.Detail.ErrorMessage, part) {
						t.Errorf("message = %q, want it to contain %q", got.Detail.ErrorMessage, part)
					}
				}
				if stage := last(c, func(d provision.Detail) provision.Stage { return d.Stage }); stage != provision.StageInit {
					t.Errorf("the last stage is %s, want %s", stage, provision.StageInit)
				}
				return
			}
			wantEnd(t, got, provision.Success, "")
			again, _ := s.run()
			wantEnd(t, again, provision.Success, "")
			if told := strings.Contains(c.text(), "The lock file has no checksum of "+address); told != (test.downloads > 1) {
				t.Errorf("the log says that the lock file is of another platform: %v, want %v", told, test.downloads > 1)
			}
			if got := mirror.Downloads(); got != test.downloads {
				t.Errorf("%d downloads by two runs, want %d", got, test.downloads)
			}
			s.wantNothingLeft()
		})
	}
}

func lockOf(address, version string, hashes ...string) string {
	return fmt.Sprintf("provider %q {\n  version = %q\n  hashes = [\"%s\"]\n}\n", address, version, strings.Join(hashes, `", "`))
}
