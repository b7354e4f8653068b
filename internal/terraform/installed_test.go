package terraform

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gofrs/flock"

	"github.com/tendril-run/tendril/internal/caches"
)

// installs makes engines as Locate would have installed them, each of 1 MiB.
func installs(t *testing.T, dir string, kind string, versions ...string) {
	t.Helper()
	for _, version := range versions {
		binary := filepath.Join(dir, kind, version, kind)
		if err := errors.Join(os.MkdirAll(filepath.Dir(binary), 0o755), os.WriteFile(binary, make([]byte, 1<<20), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
}

func installedIn(t *testing.T, dir string) (versions []string) {
	t.Helper()
	items, err := Installed{dir}.Items()
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range items {
		versions = append(versions, filepath.Base(item.Path))
	}
	slices.Sort(versions)
	return versions
}

func TestEnginesOverTheLimit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	installs(t, dir, Terraform, "1.9.0", "1.10.0", "1.11.4")
	installs(t, dir, OpenTofu, "1.9.0") // which nobody downloads
	for version, hours := range map[string]int{"1.9.0": 2, "1.10.0": 3, "1.11.4": 1} {
		used := time.Now().Add(-time.Duration(hours) * time.Hour)
		if err := os.Chtimes(filepath.Join(dir, Terraform, version), used, used); err != nil {
			t.Fatal(err)
		}
	}
	engine := Engine{Kind: Terraform, Path: filepath.Join(dir, Terraform, "1.9.0", Terraform), Version: "1.9.0"}
	release, held := engine.Hold(dir)
	if !held {
		t.Fatal("Hold() = false, want it held")
	}
	k := caches.NewKeeper(dir, caches.Limits{Most: 1}, Installed{dir})
	if _, err := k.Pass(t.Context()); err != nil || !slices.Equal(installedIn(t, dir), []string{"1.9.0"}) {
		t.Errorf("Pass() = %v and left %q, want the one that a run uses", err, installedIn(t, dir))
	}
	if info, err := os.Stat(filepath.Dir(engine.Path)); err != nil || time.Since(info.ModTime()) > time.Hour {
		t.Errorf("Stat() = %v, %v, want it marked as used", info, err)
	}
	if other, held := engine.Hold(dir); !held {
		t.Error("Hold() = false for a second run")
	} else {
		other()
	}
	release()
	if _, err := k.Pass(t.Context()); err != nil || len(installedIn(t, dir)) > 0 {
		t.Errorf("Pass() = %v and left %q, want none", err, installedIn(t, dir))
	}
	if _, err := os.Stat(filepath.Join(dir, OpenTofu, "1.9.0", OpenTofu)); err != nil {
		t.Errorf("an engine that cannot be downloaded is gone: %v", err)
	}
	if _, held := engine.Hold(dir); held {
		t.Error("Hold(removed) = true, want it refused")
	}
	entries, err := os.ReadDir(filepath.Join(dir, Terraform))
	if len(entries) > 0 || err != nil {
		t.Errorf("ReadDir() = %v, %v, want nothing left", entries, err)
	}
}

// The operator's own are nobody's to remove.
func TestHoldOfAnEngineFromElsewhere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, path := range []string{"/usr/local/bin/terraform", dir + "-other/terraform/1.9.0/terraform"} {
		if _, held := (Engine{Path: path}).Hold(dir); !held {
			t.Errorf("Hold(%s) = false, want true", path)
		}
	}
}

func TestRemovedEngineIsInstalledAgain(t *testing.T) {
	t.Parallel()
	m, dir := newMirror(t), t.TempDir()
	locate := func() Engine {
		t.Helper()
		engine, err := Locate(t.Context(), m.cfg, Want{Version: mirrored}, dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		return engine
	}
	first := locate()
	k := caches.NewKeeper(dir, caches.Limits{Most: 1}, Installed{dir})
	if p, err := k.Pass(t.Context()); err != nil || len(p.Removed) != 1 {
		t.Fatalf("Pass() = %+v, %v, want the engine removed", p, err)
	}
	if second := locate(); second != first {
		t.Errorf("Locate() = %+v, want %+v again", second, first)
	}
}

func TestSweepOfEngines(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	home := filepath.Join(dir, Terraform)
	at := func(name string) string { return filepath.Join(home, name) }
	err := errors.Join(
		os.MkdirAll(filepath.Join(at(removedPrefix+"1"), "x"), 0o700), os.MkdirAll(at(stagingPrefix+"1"), 0o700),
		os.WriteFile(filepath.Join(outside, "kept"), nil, 0o600), os.Symlink(outside, at(removedPrefix+"2")))
	if err != nil {
		t.Fatal(err)
	}
	there := func(name string) bool {
		_, err := os.Lstat(at(name))
		return err == nil
	}
	lock := flock.New(at(installLock))
	if free, err := lock.TryLock(); !free || err != nil {
		t.Fatalf("TryLock() = %v, %v", free, err)
	}
	if err := (Installed{dir}).Sweep(t.Context()); err != nil || !there(stagingPrefix+"1") || there(removedPrefix+"1") || there(removedPrefix+"2") {
		t.Errorf("Sweep() = %v while something is installed, want that left alone and the rest gone", err)
	}
	if err := errors.Join(lock.Unlock(), Installed{dir}.Sweep(t.Context())); err != nil || there(stagingPrefix+"1") {
		t.Errorf("Sweep() = %v, want what a killed installer left gone", err)
	}
	if _, err := os.Stat(filepath.Join(outside, "kept")); err != nil {
		t.Errorf("what a link leads to is gone: %v", err)
	}
}
