package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWriteFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "instance")
	for _, content := range []string{"one", "another, longer", ""} {
		if err := WriteFile(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("the file holds %q, %v, want %q", got, err, content)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has the mode %v, %v, want 0600", info.Mode(), err)
	}
	wantOnly(t, dir, "instance")
}

// What cannot be written leaves the old file, and nothing else.
func TestWriteFileThatFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "taken", "by a directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(filepath.Join(dir, "taken"), []byte("content")); !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EISDIR) {
		t.Errorf("WriteFile() in place of a directory = %v, want an error", err)
	}
	wantOnly(t, dir, "taken")
	if err := WriteFile(filepath.Join(dir, "none", "file"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("WriteFile() in no directory = %v, want %v", err, fs.ErrNotExist)
	}
}

// What is there stays.
func TestCreateFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "key")
	first, second := CreateFile(path, []byte("one")), CreateFile(path, []byte("two"))
	if first != nil || !errors.Is(second, fs.ErrExist) {
		t.Errorf("CreateFile() twice = %v, %v, want nil and %v", first, second, fs.ErrExist)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "one" {
		t.Errorf("the file holds %q, %v, want what was first", got, err)
	}
	wantOnly(t, dir, "key")
}

func TestRename(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	for _, content := range []string{"one", "two"} {
		if err := os.WriteFile(from, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Rename(from, to); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(to); err != nil || string(got) != content {
			t.Errorf("the file holds %q, %v, want %q", got, err, content)
		}
	}
	if err := Rename(from, to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Rename() of nothing = %v, want %v", err, fs.ErrNotExist)
	}
	wantOnly(t, dir, "to")
}

func wantOnly(t *testing.T, dir, name string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != name {
		t.Errorf("the directory holds %v, %v, want %s alone", entries, err, name)
	}
}
