package executor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/providertest"
)

// An agent's mirror serves both engines, together with the store, and nothing
// else is asked.
func TestProviderMirror(t *testing.T) {
	t.Parallel()
	for engine, registry := range map[string]string{"terraform": "registry.terraform.io", "tofu": "registry.opentofu.org"} {
		for _, kind := range []string{"network", "directory"} {
			t.Run(engine+" "+kind, func(t *testing.T) {
				t.Parallel()
				mirror := providertest.NewMirror(t)
				s := newSite(t)
				s.job.Settings.Engine.Kind = engine
				s.env = mirror.CAEnv()
				s.job.Settings.Engine.ProviderMirror = mirror.URL() + "/"
				downloads := 1
				if kind == "directory" {
					dir := t.TempDir()
					mirror.Unpack(t, providertest.Version, filepath.Join(dir, registry, "hashicorp", "time", providertest.Version, providertest.Platform))
					s.job.Settings.Engine.ProviderMirror, downloads = dir, 0
				}
				s.template(map[string]string{"main.tf": withProvider}, nil)
				for range 2 {
					s.job.NoteKey = append(s.job.NoteKey, 'x') // init runs each time
					got, _ := s.run()
					wantEnd(t, got, provision.Success, "")
					s.wantNothingLeft()
				}
				if got := mirror.Downloads(); got != downloads {
					t.Errorf("%d downloads by two runs, want %d: the store has the package after the first", got, downloads)
				}
			})
		}
	}
}

// What the mirror does not have is not to be had, though the template ships it.
func TestProviderMirrorIsTheOnlySource(t *testing.T) {
	t.Parallel()
	mirror := providertest.NewMirror(t)
	s := newSite(t)
	empty := t.TempDir()
	s.job.Settings.Engine.ProviderMirror = empty
	s.template(map[string]string{
		"main.tf": withProvider,
		"terraform.d/plugins/registry.terraform.io/hashicorp/time/" + providertest.Version + "/" + providertest.Platform + "/" + providertest.ProgramName(providertest.Version): "#!/bin/sh\n",
	}, nil)
	s.env = mirror.Env() // an operator's own configuration gives way
	got, _ := s.run()
	wantEnd(t, got, provision.Failed, provision.CodeInitFailed)
	if said := strings.Join(strings.Fields(got.Detail.ErrorMessage), " "); !strings.Contains(said, "was not found in any of the search locations - "+empty) {
		t.Errorf("message = %q, want the directory named as the only place", said)
	}
	if got := mirror.Downloads(); got != 0 {
		t.Errorf("%d downloads from elsewhere, want none", got)
	}
	if err := os.Remove(empty); err != nil {
		t.Errorf("Remove(the mirror) = %v, want it empty still", err)
	}
}
