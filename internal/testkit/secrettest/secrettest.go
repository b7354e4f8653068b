// Package secrettest lays out files as a kubelet mounts a Secret, and changes them
// as it does when the Secret has changed, for tests of who reads them again.
//
// It must not know what is in them.
package secrettest

import (
	"os"
	"path/filepath"
	"testing"
)

// Volume is a mounted Secret.
type Volume struct{ dir string }

// Mount mounts a Secret of these files, whose names are its keys.
func Mount(t testing.TB, files map[string]string) *Volume {
	t.Helper()
	v := &Volume{t.TempDir()}
	for name := range files {
		if err := os.Symlink(filepath.Join("..data", name), v.Path(name)); err != nil {
			t.Fatal(err)
		}
	}
	v.Replace(t, files)
	return v
}

// Path is where a file is.
func (v *Volume) Path(name string) string { return filepath.Join(v.dir, name) }

// Replace puts all files in the place of those that are there, at once: the new
// ones are in a directory of their own, and the link to the old one is renamed over.
func (v *Volume) Replace(t testing.TB, files map[string]string) {
	t.Helper()
	fresh, err := os.MkdirTemp(v.dir, "..")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(fresh, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data, next := v.Path("..data"), v.Path("..data_tmp")
	stale, _ := os.Readlink(data) // none at first
	if err := os.Symlink(filepath.Base(fresh), next); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, data); err != nil {
		t.Fatal(err)
	}
	if stale != "" {
		if err := os.RemoveAll(v.Path(stale)); err != nil {
			t.Fatal(err)
		}
	}
}
