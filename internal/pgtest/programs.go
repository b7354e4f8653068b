package pgtest

import (
	"os"
	"path/filepath"
	"testing"
)

// Programs18 is the directory of the programs of PostgreSQL 18, which `make
// deps` fetches: systems are slow to bring the newest major version.
func Programs18(t testing.TB) string {
	t.Helper()
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		bin := filepath.Join(dir, "postgresql-18", "bin")
		if _, err := os.Stat(filepath.Join(bin, "postgres")); err == nil {
			return bin
		}
	}
	t.Fatal("pgtest.Programs18: no directory on PATH has postgresql-18/bin/postgres: run `make deps`, and the tests by `make test` or with .tools on PATH")
	return ""
}
