package pgtest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"go.uber.org/goleak"

	"github.com/tendril-run/tendril/internal/controlplane/postgres"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// shared is the process's server. A test process is the one place where such a
// thing cannot be handed down: testing.M passes nothing to tests.
var shared server

// server is a lazily started PostgreSQL and the templates made on it.
type server struct {
	mu        sync.Mutex
	options   []OwnOption
	closed    bool
	dir       string
	running   *postgres.Server
	err       error
	templates map[string]*template
}

// fast trades durability for speed.
func fast() map[string]string {
	return map[string]string{
		"fsync":              "off",
		"synchronous_commit": "off",
		"full_page_writes":   "off",
		"autovacuum":         "off",
		"max_connections":    "400",
		"max_wal_size":       "4GB",
	}
}

// Main runs the tests of a package, stops the server they shared and fails
// when goroutines are left over. The options are that server's. It does not
// return.
func Main(m interface{ Run() int }, opts ...OwnOption) {
	shared.options = opts
	os.Exit(run(m))
}

func run(m interface{ Run() int }) int {
	code := m.Run()
	if err := shared.close(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goleak: Errors on successful test run:", err)
			code = 1
		}
	}
	return code
}

// get starts the server if no test did before. A failed start is final, so
// that a hundred tests do not each wait for it.
func (s *server) get() (*postgres.Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, fmt.Errorf("the test server is stopped already")
	case s.running != nil || s.err != nil:
		return s.running, s.err
	}
	if s.dir, s.err = makeDir(); s.err != nil {
		return nil, s.err
	}
	// Not a test's context: the server outlives the test that starts it.
	ctx, cancel := patience.Context(context.Background(), 2*time.Minute)
	defer cancel()
	o := postgres.Options{DataDir: s.dir, BinDir: os.Getenv(binEnv), Settings: fast(), Log: os.Stderr}
	for _, opt := range s.options {
		opt(&o)
	}
	s.running, s.err = postgres.Start(ctx, o)
	return s.running, s.err
}

func (s *server) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.running != nil {
		ctx, cancel := patience.Context(context.Background(), 30*time.Second)
		defer cancel()
		if err := s.running.Stop(ctx); err != nil {
			return err
		}
	}
	if s.dir == "" {
		return nil
	}
	return os.RemoveAll(s.dir)
}
