package pgtest

import (
	"fmt"
	"os"
	"testing"
)

// binEnv names the directory of the PostgreSQL programs to test with.
const binEnv = "TENDRIL_TEST_POSTGRES_BIN"

// Dir makes a directory that PostgreSQL's account can reach when the tests run
// as root, which it cannot with t.TempDir(), and removes it after the test.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := makeDir()
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

func makeDir() (string, error) {
	dir, err := os.MkdirTemp("", "tendril-pgtest-")
	if err != nil {
		return "", fmt.Errorf("making a directory for PostgreSQL: %w", err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return "", fmt.Errorf("making a directory for PostgreSQL: %w", err)
	}
	return dir, nil
}
