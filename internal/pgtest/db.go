package pgtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/controlplane/postgres"
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

// WithSetup fills the database by setup. It runs once for each name in a test
// process; databases are then copied. The same name must mean the same setup.
func WithSetup(name string, setup Setup) Option {
	return func(o *options) { o.name, o.setup = name, setup }
}

// DB is one test's database.
type DB struct {
	// URL connects as superuser. It holds the password.
	URL  string
	Name string

	server *postgres.Server
}

// New makes a database for the test, empty unless WithSetup fills it, and
// drops it when the test is over. Roles are shared with the other databases of
// the test process.
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
	if err := exec(t.Context(), server, "postgres", "CREATE DATABASE "+quote(name)+" TEMPLATE "+quote(from)); err != nil {
		t.Fatalf("pgtest.New: %v", err)
	}
	t.Cleanup(func() {
		// The test's own context is over by now.
		if err := exec(context.Background(), server, "postgres", "DROP DATABASE "+quote(name)+" WITH (FORCE)"); err != nil {
			t.Errorf("pgtest: dropping the test's database: %v", err)
		}
	})
	if o.start != "" {
		if err := exec(t.Context(), server, name, o.start); err != nil {
			t.Fatalf("pgtest.New: %v", err)
		}
	}
	return &DB{URL: server.URL(name), Name: name, server: server}
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
func (tm *template) get(server *postgres.Server) (string, error) {
	tm.once.Do(func() { tm.err = tm.make(context.Background(), server) })
	return tm.name, tm.err
}

func (tm *template) make(ctx context.Context, server *postgres.Server) error {
	if err := exec(ctx, server, "postgres", "CREATE DATABASE "+quote(tm.name)+" TEMPLATE template0"); err != nil {
		return err
	}
	if err := tm.setup(ctx, server.URL(tm.name)); err != nil {
		return err
	}
	// A connection that the setup forgot would fail a copy now and then; this
	// makes it fail always.
	if err := exec(ctx, server, "postgres", "ALTER DATABASE "+quote(tm.name)+" ALLOW_CONNECTIONS false"); err != nil {
		return err
	}
	return awaitIdle(ctx, server, tm.name)
}

// awaitIdle returns when nobody is connected to a database: a connection that
// was closed takes a moment to be gone on the server's side.
func awaitIdle(ctx context.Context, server *postgres.Server, name string) error {
	conn, err := pgx.Connect(ctx, server.URL("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
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

// exec runs one statement in a database; "postgres" is the one for maintenance.
func exec(ctx context.Context, server *postgres.Server, database, statement string) error {
	conn, err := pgx.Connect(ctx, server.URL(database))
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
