package executor_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/caches"
	"github.com/tendril-run/tendril/internal/providers"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/source"
	"github.com/tendril-run/tendril/internal/terraform"
	"github.com/tendril-run/tendril/internal/testkit/providertest"
)

// installed puts the machine's Terraform where an agent would have downloaded it,
// takes it from PATH, and returns where it is.
func (s *site) installed() string {
	s.t.Helper()
	found, err := exec.LookPath("terraform")
	if err == nil {
		found, err = filepath.EvalSymlinks(found)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	at := filepath.Join(s.job.Dirs.Engines, "terraform", "1.11.4", "terraform")
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		s.t.Fatal(err)
	}
	if os.Link(found, at) != nil { // on another file system
		if out, err := exec.Command("cp", found, at).CombinedOutput(); err != nil {
			s.t.Fatalf("%v: %s", err, out)
		}
	}
	dirs := slices.DeleteFunc(filepath.SplitList(os.Getenv("PATH")), func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, "terraform"))
		return err == nil
	})
	s.env = append(s.env, "PATH="+strings.Join(dirs, string(filepath.ListSeparator)))
	return at
}

// The caches are emptied in the middle of a run, as a limit of nothing would have
// it: what the run goes on using stays, and the next one fetches the rest again.
func TestCachesAreEmptiedDuringARun(t *testing.T) {
	t.Parallel()
	mirror := providertest.NewMirror(t)
	s := newSite(t)
	s.env = mirror.Env()
	engine := s.installed()
	meet := t.TempDir()
	repo := s.template(map[string]string{"main.tf": withProvider + `
resource "terraform_data" "slow" {
  triggers_replace = time_static.now
  provisioner "local-exec" { command = "echo began; while [ ! -e ` + meet + `/on ]; do sleep 0.05; done" }
}
`}, nil)
	keeper := caches.NewKeeper(s.dirs, caches.Limits{Most: 1},
		source.Mirrors{Dir: s.job.Dirs.Repos}, providers.Packages{Dir: s.job.Dirs.Providers}, terraform.Installed{Dir: s.job.Dirs.Engines})
	removed := func() (kinds []string) {
		t.Helper()
		p, err := keeper.Pass(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range p.Removed {
			kinds = append(kinds, r.Kind)
		}
		slices.Sort(kinds)
		return kinds
	}

	c := s.start()
	c.await("(local-exec): began")
	if got := removed(); !slices.Equal(got, []string{"repos"}) {
		t.Errorf("removed %q during a run, want the mirror, which it needs no more", got)
	}
	if err := os.WriteFile(filepath.Join(meet, "on"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantEnd(t, c.end(), provision.Success, "")
	if got := removed(); !slices.Equal(got, []string{"engines", "providers"}) {
		t.Errorf("removed %q after the run, want the engine and the provider", got)
	}

	if again := s.installed(); again != engine {
		t.Fatalf("installed %s, want %s", again, engine)
	}
	s.git.Reset()
	got, _ := s.run()
	wantEnd(t, got, provision.Success, "")
	if downloads, packs := mirror.Downloads(), s.git.Requests().Packs; downloads != 2 || packs != 1 {
		t.Errorf("downloads = %d, packs asked for of %s = %d, want 2 and 1", downloads, repo.URL, packs)
	}
}

// A run that is killed uses nothing any more.
func TestAKilledRunKeepsNothingInTheCaches(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	engine := s.installed()
	s.template(map[string]string{"main.tf": `
resource "terraform_data" "slow" {
  provisioner "local-exec" { command = "echo began; sleep 60" }
}
`}, nil)
	keeper := caches.NewKeeper(s.dirs, caches.Limits{Most: 1}, terraform.Installed{Dir: s.job.Dirs.Engines})
	c := s.start()
	c.await("(local-exec): began")
	if p, err := keeper.Pass(t.Context()); err != nil || len(p.Removed) > 0 {
		t.Errorf("Pass() = %+v, %v during a run, want nothing removed", p, err)
	}
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-c.dead
	if p, err := keeper.Pass(t.Context()); err != nil || len(p.Removed) != 1 {
		t.Errorf("Pass() = %+v, %v after it was killed, want the engine removed", p, err)
	}
	if _, err := os.Stat(engine); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat(engine) = %v, want it gone", err)
	}
}
