package pgtest

import (
	"os"
	"path/filepath"
	"testing"
)

// Programs18 is the directory of the programs of PostgreSQL 18, which systems
// are slow to bring.
func Programs18(t testing.TB) string {
	t.Helper()
	return Tool(t, "postgresql-18/bin")
}

// Tool is the path of something that `make deps` has fetched, by its path there.
func Tool(t testing.TB, name string) string {
	t.Helper()
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	t.Fatalf("no directory on PATH has %s: run `make deps`, and the tests by `make test` or with the directory of `make tools-dir` on PATH", name)
	return ""
}
