package caches

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A template decides what is in a tree: what leads out of it is not checked,
// nothing is waited for, and nothing is too deep.
func TestSizeOfWhatATemplateMade(t *testing.T) {
	t.Parallel()
	root, outside := t.TempDir(), t.TempDir()
	deep := filepath.Join(root, strings.Repeat("d/", 300))
	err := errors.Join(
		os.WriteFile(filepath.Join(outside, "large"), make([]byte, 4*mib), 0o600),
		os.Symlink(outside, filepath.Join(root, "out")),
		os.Symlink(filepath.Join(outside, "large"), filepath.Join(root, "file")),
		unix.Mkfifo(filepath.Join(root, "pipe"), 0o600),
		os.WriteFile(filepath.Join(root, "mine"), make([]byte, mib), 0o600),
		os.MkdirAll(deep, 0o700))
	if err != nil {
		t.Fatal(err)
	}
	sparse, err := os.Create(filepath.Join(root, "sparse"))
	if err := errors.Join(err, sparse.Truncate(1<<40), sparse.Close()); err != nil {
		t.Fatal(err)
	}
	if got, err := Size(t.Context(), root); err != nil || got < mib || got > 4*mib {
		t.Errorf("Size() = %d, %v, want a little more than 1 MiB", got, err)
	}
	if got, err := Size(t.Context(), filepath.Join(root, "out")); err != nil || got > mib {
		t.Errorf("Size(link) = %d, %v, want that of the link", got, err)
	}
	if got, err := Size(t.Context(), filepath.Join(root, "nowhere")); err != nil || got != 0 {
		t.Errorf("Size(nothing) = %d, %v, want nothing", got, err)
	}
}

// A file system in user space may say what it likes.
func TestFreeOfAnyFileSystem(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		said unix.Statfs_t
		want Free
	}{
		"ordinary":         {unix.Statfs_t{Bsize: 4096, Bavail: 100, Files: 20_000, Ffree: 9_000}, Free{Bytes: 409_600}},
		"few inodes":       {unix.Statfs_t{Bsize: 4096, Bavail: 100, Files: 20_000, Ffree: 4_000}, Free{Bytes: 409_600, FewInodes: true}},
		"a small one":      {unix.Statfs_t{Bsize: 4096, Bavail: 100, Files: 5_000, Ffree: 4_000}, Free{Bytes: 409_600}},
		"no inodes at all": {unix.Statfs_t{Bsize: 4096, Bavail: 100}, Free{Bytes: 409_600}},
		"no block size":    {unix.Statfs_t{Bavail: 100}, Free{Bytes: 100}},
		"without an end":   {unix.Statfs_t{Bsize: 4096, Bavail: 1<<64 - 1}, Free{Bytes: 1 << 62}},
	} {
		if got := freeOf(c.said); got != c.want {
			t.Errorf("%s: freeOf() = %+v, want %+v", name, got, c.want)
		}
	}
}

func TestSizesByKind(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, size := range map[string]int{
		"repos/a/git": 3, "providers/p": 2, "engines/e": 1, "work/w": 1, "state/s": 1, "states/s": 1, "spool/x": 1, "rejected/r": 1,
		"home/h": 1, "instance": 1,
	} {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, size*mib), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	sizes, err := Sizes(t.Context(), root, map[string]int64{"work": 42 * mib})
	if err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[string]int64{
		"repos": 3, "providers": 2, "engines": 1, "work": 42, "state": 2, "spool": 1, "rejected": 1, Other: 2,
	} {
		if got := sizes[kind] / mib; got != want {
			t.Errorf("Sizes()[%s] = %d MiB, want %d", kind, got, want)
		}
	}
	if len(sizes) != len(Kinds()) {
		t.Errorf("Sizes() has %d kinds, want the %d of Kinds()", len(sizes), len(Kinds()))
	}
}
