package pgtest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/dirlock"
)

// binEnv names the directory of the PostgreSQL programs to test with.
const binEnv = "TENDRIL_TEST_POSTGRES_BIN"

// Dir makes a directory that PostgreSQL's account can reach when the tests run
// as root, which it cannot with t.TempDir(), and removes it after the test.
func Dir(t testing.TB) string {
	t.Helper()
	return removed(t, makeDir)
}

// removed makes a directory and removes it after the test.
func removed(t testing.TB, makeIt func() (string, error)) string {
	t.Helper()
	dir, err := makeIt()
	if err != nil {
		t.Fatalf("pgtest.Dir: %v", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("pgtest.Dir: %v", err)
		}
	})
	return dir
}

func makeDir() (string, error) { return makeDirIn("") }

// memory is where Linux keeps files in memory.
const memory = "/dev/shm"

// prefix begins the name of each directory.
const prefix = "tendril-pgtest-"

// enough is how much of it must be free for servers' data to lie there.
const enough = 2 << 30

// makeDataDir makes a directory for the data of a server. Each test's database is some
// hundred files, so a server that promises no durability keeps them in memory where
// there is room.
func makeDataDir(settings map[string]string) (string, error) {
	removeLeft()
	var fs unix.Statfs_t
	if settings["fsync"] == "off" && unix.Statfs(memory, &fs) == nil && fs.Type == unix.TMPFS_MAGIC && fs.Bavail*uint64(fs.Bsize) > enough {
		if dir, err := makeDirIn(memory); err == nil {
			return dir, nil
		}
	}
	return makeDir()
}

// removeLeft frees the memory that killed test processes have left occupied.
func removeLeft() {
	dirs, _ := filepath.Glob(filepath.Join(memory, prefix+"*")) // the pattern is a good one
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if _, used := dirlock.InUse(dir); err == nil && !used && time.Since(info.ModTime()) > time.Hour {
			_ = os.RemoveAll(dir) // another user's stays
		}
	}
}

func makeDirIn(parent string) (string, error) {
	dir, err := os.MkdirTemp(parent, prefix)
	if err != nil {
		return "", fmt.Errorf("making a directory for PostgreSQL: %w", err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return "", fmt.Errorf("making a directory for PostgreSQL: %w", err)
	}
	return dir, nil
}
