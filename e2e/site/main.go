package site

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gofrs/flock"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/raced"
)

// programs is the directory with the built tendril and trellis. A test process
// is the one place where such a thing cannot be handed down: testing.M passes
// nothing to tests.
var programs string

// Main builds the programs, with the race detector if the tests have it (what races in
// them ends them with an error), runs the tests of a package and removes the programs. It
// does not return.
func Main(m interface{ Run() int }) { run(m, usual, raced.Flags()) }

// usual are the programs that all these tests need.
var usual = []string{"tendril", "trellis"}

// MainStatic is Main with programs as they ship, which run in images, and with further ones.
func MainStatic(m interface{ Run() int }, further ...string) {
	if err := os.Setenv("CGO_ENABLED", "0"); err != nil {
		panic(err) // a name and a value that are always valid
	}
	run(m, append(further, usual...), []string{"-trimpath"})
}

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
	run(m, usual, []string{"-trimpath", "-ldflags", "-s -w"}, pgtest.AsInstalled())
}

func run(m interface{ Run() int }, wanted, flags []string, server ...pgtest.OwnOption) {
	// As an environment variable it reaches the tests even in processes that
	// they start; the directory is readable for whatever uid those have.
	dir, err := os.MkdirTemp("", "tendril-e2e-")
	if err == nil {
		err = os.Chmod(dir, 0o755) // other uids run what is in it
	}
	if err == nil {
		err = build(dir, wanted, flags)
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

// build builds the programs into a directory. To link them takes longer than
// anything else that several packages' tests begin with, so they are built where
// the next one finds them: go itself sees whether they are still the same.
func build(dir string, wanted, flags []string) error {
	kept := filepath.Join(root(), ".cache", fmt.Sprintf("programs-%x", sha256.Sum256([]byte(strings.Join(flags, " ")+os.Getenv("CGO_ENABLED")))))
	if os.MkdirAll(kept, 0o755) != nil {
		return goBuild(dir, wanted, flags) // a checkout that this user may not write to
	}
	lock := flock.New(filepath.Join(kept, ".lock"))
	if err := lock.Lock(); err != nil {
		return err
	}
	defer lock.Unlock() //nolint:errcheck // closing the file, which ends the lock, has no other way to fail
	if err := goBuild(kept, wanted, flags); err != nil {
		return err
	}
	for _, name := range wanted {
		if err := copyProgram(filepath.Join(kept, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func goBuild(dir string, wanted, flags []string) error {
	args := append([]string{"build", "-ldflags=-s -w", "-o", dir + "/"}, flags...)
	for _, name := range wanted {
		args = append(args, "./cmd/"+name)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = root()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

func copyProgram(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close() //nolint:errcheck // only read
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = target.ReadFrom(source)
	return errors.Join(err, target.Close())
}

// plain builds tendril as it ships, once, where the other programs are.
var plain = sync.OnceValues(func() (string, error) {
	path := filepath.Join(programs, "plain", "tendril")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "./cmd/tendril")
	cmd.Dir, cmd.Env = root(), append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	return path + string(out), err
})

// Plain is a tendril without the race detector, which multiplies memory and
// time: for tests that measure one of them.
func Plain(t testing.TB) string {
	t.Helper()
	path, err := plain()
	if err != nil {
		t.Fatalf("building tendril: %v: %s", err, path)
	}
	return path
}
