package site

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tendril-run/tendril/internal/pgtest"
)

// programs is the directory with the built tendril and trellis. A test process
// is the one place where such a thing cannot be handed down: testing.M passes
// nothing to tests.
var programs string

// Main builds the programs with the race detector on (what races in them ends
// them with an error), runs the tests of a package and removes the programs. It
// does not return.
func Main(m interface{ Run() int }) { run(m, []string{"-race"}) }

// MainShipped is Main for benchmarks: the programs are what "make build" makes,
// and PostgreSQL keeps what it has committed. Where no benchmark is to run, nothing
// is built.
func MainShipped(m interface{ Run() int }) {
	if flag.Parse(); flag.Lookup("test.bench").Value.String() == "" {
		pgtest.Main(m)
	}
	if err := os.Setenv("CGO_ENABLED", "0"); err != nil {
		panic(err) // a name and a value that are always valid
	}
	run(m, []string{"-trimpath", "-ldflags", "-s -w"}, pgtest.AsInstalled())
}

func run(m interface{ Run() int }, flags []string, server ...pgtest.OwnOption) {
	// As an environment variable it reaches the tests even in processes that
	// they start; the directory is readable for whatever uid those have.
	dir, err := os.MkdirTemp("", "tendril-e2e-")
	if err == nil {
		err = os.Chmod(dir, 0o755) // other uids run what is in it
	}
	if err == nil {
		err = build(dir, flags)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e: building the programs:", err)
		os.Exit(1)
	}
	programs = dir
	pgtest.Main(cleanup{m, dir}, server...)
}

// root is the directory of the module, whichever package's tests run.
func root() string {
	dir, err := os.Getwd()
	for ; err == nil && dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	return "" // no test can run outside of the module
}

// cleanup removes the programs when the tests have run.
type cleanup struct {
	m   interface{ Run() int }
	dir string
}

func (c cleanup) Run() int {
	defer os.RemoveAll(c.dir) //nolint:errcheck // a leftover in the temporary directory
	return c.m.Run()
}

// Program returns the path of a built program.
func Program(name string) string { return filepath.Join(programs, name) }
