package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/tendril-run/tendril/internal/pgtest"
)

// programs is the directory with the built tendril and trellis.
var programs string

func TestMain(m *testing.M) {
	// As an environment variable it reaches the tests even in processes that
	// they start; the directory is readable for whatever uid those have.
	dir, err := os.MkdirTemp("", "tendril-e2e-")
	if err == nil {
		err = os.Chmod(dir, 0o755) // other uids run what is in it
	}
	if err == nil {
		err = build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e: building the programs:", err)
		os.Exit(1)
	}
	programs = dir
	pgtest.Main(cleanup{m, dir})
}

// build builds the programs with the race detector on: what races in them ends
// them with an error.
func build(dir string) error {
	cmd := exec.Command("go", "build", "-race", "-o", dir, "./cmd/tendril", "./cmd/trellis")
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// cleanup removes the programs when the tests have run.
type cleanup struct {
	m   *testing.M
	dir string
}

func (c cleanup) Run() int {
	defer os.RemoveAll(c.dir) //nolint:errcheck // a leftover in the temporary directory
	return c.m.Run()
}

func program(name string) string { return filepath.Join(programs, name) }
