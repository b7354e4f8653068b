package pgtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Setup fills the database at url. It must close the connections it opens.
type Setup = func(ctx context.Context, url string) error

// Option says what a database should hold.
type Option func(*options)

type options struct {
	name  string
	setup Setup
	start string
}

// WithStart runs a statement in each database when it is made: for what a copy
// must not have from its template, such as its age.
func WithStart(statement string) Option {
	return func(o *options) { o.start = statement }
}

// All is several options as one.
func All(opts ...Option) Option {
	return func(o *options) {
		for _, opt := range opts {
			opt(o)
		}
	}
}

// WithSetup fills the database by setup. It runs once for each name on a server;
// databases are then copied. The same name must mean the same setup, in all packages.
func WithSetup(name string, setup Setup) Option {
	return func(o *options) { o.name, o.setup = name, setup }
}

// DB is one test's database.
type DB struct {
	// URL connects as superuser. It holds the password.
	URL  string
	Name string
}

// New makes a database for the test, empty unless WithSetup fills it, and
// drops it when the test is over. Roles are shared with the other databases of
// the server.
func New(t testing.TB, opts ...Option) *DB {
	t.Helper()
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	server, err := shared.get()
	if err != nil {
		t.Fatalf("pgtest.New: %v", err)
	}
	from := "template0"
	if o.setup != nil {
		if from, err = shared.template(o).get(server); err != nil {
			t.Fatalf("pgtest.New: setting up %q: %v", o.name, err)
		}
	}
	name := "test_" + strings.ToLower(rand.Text())
	if _, err := server.admin.Exec(t.Context(), copyOf(name, from)); err != nil {
		t.Fatalf("pgtest.New: %v", err)
	}
	t.Cleanup(func() {
		// The test's own context is over by now.
		if _, err := server.admin.Exec(context.Background(), "DROP DATABASE "+quote(name)+" WITH (FORCE)"); err != nil {
			t.Errorf("pgtest: dropping the test's database: %v", err)
		}
	})
	if o.start != "" {
		if err := execute(t.Context(), server.url(name), o.start); err != nil {
			t.Fatalf("pgtest.New: %v", err)
		}
	}
	return &DB{URL: server.url(name), Name: name}
}

// Conn opens a connection as superuser that is closed when the test is over.
func (db *DB) Conn(t testing.TB) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.URL)
	if err != nil {
		t.Fatalf("pgtest: connecting: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// template is a database that a setup filled, to be copied.
type template struct {
	once  sync.Once
	name  string
	setup Setup
	err   error
}

// template returns the template of o's name; the first caller's setup is the
// one that counts.
func (s *server) template(o options) *template {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.templates == nil {
		s.templates = map[string]*template{}
	}
	if s.templates[o.name] == nil {
		s.templates[o.name] = &template{name: "template_" + o.name, setup: o.setup}
	}
	return s.templates[o.name]
}

// get returns the template's name, making it if it is not made yet.
func (tm *template) get(server *running) (string, error) {
	tm.once.Do(func() { tm.err = tm.make(context.Background(), server) })
	return tm.name, tm.err
}

// make makes the template, unless another package has done so on the same server.
func (tm *template) make(ctx context.Context, server *running) error {
	conn, err := server.admin.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtext($1))", tm.name); err != nil {
		return err
	}
	defer func() { _, _ = conn.Exec(ctx, "SELECT pg_advisory_unlock(hashtext($1))", tm.name) }()
	// Nobody may connect to one that is complete.
	var made bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1 AND NOT datallowconn)", tm.name).Scan(&made); err != nil || made {
		return err
	}
	if _, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+quote(tm.name)+" WITH (FORCE)"); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, copyOf(tm.name, "template0")); err != nil {
		return err
	}
	if err := tm.setup(ctx, server.url(tm.name)); err != nil {
		return err
	}
	// A connection that the setup forgot would fail a copy now and then; this
	// makes it fail always.
	if _, err := conn.Exec(ctx, "ALTER DATABASE "+quote(tm.name)+" ALLOW_CONNECTIONS false"); err != nil {
		return err
	}
	return awaitIdle(ctx, conn, tm.name)
}

// copyOf is the statement that makes a database of another's files, which is faster here
// than by way of the log: its checkpoints only write to memory.
func copyOf(name, from string) string {
	return "CREATE DATABASE " + quote(name) + " TEMPLATE " + quote(from) + " STRATEGY FILE_COPY"
}

// awaitIdle returns when nobody is connected to a database: a connection that
// was closed takes a moment to be gone on the server's side.
func awaitIdle(ctx context.Context, conn *pgxpool.Conn, name string) error {
	const asks = 2400 // of 25 ms, which is a minute
	for range asks {
		var busy bool
		err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = $1),
			pg_sleep(CASE WHEN EXISTS (SELECT FROM pg_stat_activity WHERE datname = $1) THEN 0.025 ELSE 0 END)`, name).Scan(&busy, nil)
		if err != nil || !busy {
			return err
		}
	}
	return fmt.Errorf("the setup left a connection to %s open", name)
}

// execute runs one statement on a connection of its own.
func execute(ctx context.Context, url, statement string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	if closeErr := conn.Close(context.WithoutCancel(ctx)); err == nil {
		err = closeErr
	}
	return err
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
