package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/tendril-run/tendril/internal/controlplane/postgres"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// shared is the server of this process's tests. A test process is the one place where such
// a thing cannot be handed down: testing.M passes nothing to tests.
var shared server

// addressEnv names a file that says where the server is that all packages share: see served.
const addressEnv = "TENDRIL_TEST_POSTGRES"

// server is a PostgreSQL, started or found when the first test wants it, and the
// templates on it.
type server struct {
	mu        sync.Mutex
	options   []OwnOption
	closed    bool
	running   *running
	err       error
	templates map[string]*template
}

// running is a server that answers, and connections for making and dropping databases.
type running struct {
	address string
	admin   *pgxpool.Pool
	stop    func(context.Context) error
}

// url is the address of a database, as superuser.
func (r *running) url(database string) string {
	return strings.Replace(r.address, "/postgres?", "/"+url.PathEscape(database)+"?", 1)
}

// fast trades durability for speed.
func fast() map[string]string {
	return map[string]string{
		"fsync":              "off",
		"synchronous_commit": "off",
		"full_page_writes":   "off",
		"autovacuum":         "off",
		"max_connections":    "400",
		"max_wal_size":       "512MB",
		"jit":                "off", // it compiles for longer than any query of a test takes
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
func (s *server) get() (*running, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, fmt.Errorf("the test server is stopped already")
	case s.running != nil || s.err != nil:
		return s.running, s.err
	}
	// A package with options has a server to itself.
	if file := os.Getenv(addressEnv); file != "" && s.options == nil {
		s.running, s.err = find(file)
	} else {
		s.running, s.err = start(s.options)
	}
	return s.running, s.err
}

func find(file string) (*running, error) {
	served, err := readServed(file)
	if err != nil {
		return nil, err
	}
	return connect(served.address, func(context.Context) error { return nil })
}

// served is what Serve says: the shared server's address, and a directory with the data of a
// new server that never runs.
type served struct{ address, initial string }

func readServed(file string) (served, error) {
	text, err := os.ReadFile(file)
	address, initial, ok := strings.Cut(strings.TrimSpace(string(text)), "\n")
	if err == nil && !ok {
		err = fmt.Errorf("%s has not two lines", file)
	}
	if err != nil {
		return served{}, fmt.Errorf("reading where the tests' server is: %w", err)
	}
	return served{address, initial}, nil
}

func start(opts []OwnOption) (*running, error) {
	// Not a test's context: the server outlives the test that starts it.
	ctx, cancel := patience.Context(context.Background(), 2*time.Minute)
	defer cancel()
	o := postgres.Options{BinDir: os.Getenv(binEnv), Settings: fast(), Log: os.Stderr}
	for _, opt := range opts {
		opt(&o)
	}
	var err error
	if o.DataDir, err = makeDataDir(o.Settings); err != nil {
		return nil, err
	}
	server, err := postgres.Start(ctx, o)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(o.DataDir))
	}
	return connect(server.URL("postgres"), func(ctx context.Context) error {
		return errors.Join(server.Stop(ctx), os.RemoveAll(o.DataDir))
	})
}

func connect(address string, stop func(context.Context) error) (*running, error) {
	admin, err := pgxpool.New(context.Background(), address) // it connects when it is used
	if err != nil {
		return nil, errors.Join(err, stop(context.Background()))
	}
	return &running{address, admin, stop}, nil
}

func (s *server) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.running == nil {
		return nil
	}
	s.running.admin.Close()
	ctx, cancel := patience.Context(context.Background(), 30*time.Second)
	defer cancel()
	return s.running.stop(ctx)
}

// Serve starts a server that all packages share, writes into the file where it is, and stops
// it when use returns. The file has its name when it is complete.
func Serve(file string, use func() error) (err error) {
	// Not to be removed as left over: a test run may last longer than an hour.
	initial, err := makeDir()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(initial)) }()
	ctx, cancel := patience.Context(context.Background(), 2*time.Minute)
	defer cancel()
	first, err := postgres.Start(ctx, postgres.Options{BinDir: os.Getenv(binEnv), Settings: fast(), Log: os.Stderr, DataDir: initial})
	if err != nil {
		return err
	}
	if err := first.Stop(ctx); err != nil {
		return err
	}
	running, err := start(nil)
	if err != nil {
		return err
	}
	s := server{running: running}
	err = os.WriteFile(file+".part", []byte(running.address+"\n"+initial+"\n"), 0o600)
	if err == nil {
		err = os.Rename(file+".part", file)
	}
	if err == nil {
		err = use()
	}
	return errors.Join(err, s.close())
}
