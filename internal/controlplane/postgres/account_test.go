package postgres

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// stranger is an account that root would lend; none of the test's files are its.
func stranger() *account {
	return &account{name: "stranger", uid: 4_000_000_001, gid: 4_000_000_001, borrowed: true}
}

func TestDirectoryInTheWayIsNamed(t *testing.T) {
	t.Parallel()
	base := filepath.Dir(newDir(t))
	closed := filepath.Join(base, "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(closed, "inside"), 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(base, "link")
	if err := os.Symlink(filepath.Join(closed, "inside"), link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{
		closed, filepath.Join(closed, "inside"), filepath.Join(closed, "new", "pg"), filepath.Join(link, "pg"),
	} {
		err := stranger().makeDataDir(dir)
		if dir == closed { // it is the parents that count, and itself
			err = stranger().canEnter(filepath.Join(dir, "x"))
		}
		if err == nil || !strings.Contains(err.Error(), "may not pass through the directory "+closed+" (drwx------)") {
			t.Errorf("makeDataDir(%s) = %v, want that %s is in the way", dir, err, closed)
		}
	}
	if exists(filepath.Join(closed, "new")) {
		t.Error("a refused directory was made")
	}
	if err := stranger().canEnter(filepath.Join(base, "x")); err != nil {
		t.Errorf("canEnter of an open directory = %v", err)
	}
}

func TestMissingParentsAreMadePassable(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(newDir(t), "a", "b")
	if err := stranger().makeDataDir(dir); err != nil {
		t.Fatal(err)
	}
	if err := stranger().canEnter(filepath.Join(dir, "x")); err != nil {
		t.Errorf("canEnter of a directory that makeDataDir made = %v", err)
	}
}

func TestDataDirIsNoDirectory(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), options(filepath.Join(dir, "pg")))
	if err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("Start below a file = %v, want it to name %s", err, dir)
	}
}
