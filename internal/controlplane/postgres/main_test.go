package postgres

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// parentEnv makes the test binary a program that starts a server in the named
// directory and then waits to be killed.
const parentEnv = "TENDRIL_TEST_PARENT_OF"

func TestMain(m *testing.M) {
	if dir := os.Getenv(parentEnv); dir != "" {
		parent(dir)
	}
	goleak.VerifyTestMain(m)
}

func parent(dir string) {
	s, err := Start(context.Background(), options(dir))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(s.process.Pid)
	<-s.Done()
	os.Exit(2)
}

// options is a quick server in dir.
func options(dir string) Options {
	return Options{DataDir: dir, BinDir: os.Getenv("TENDRIL_TEST_POSTGRES_BIN"), Settings: map[string]string{"fsync": "off"}}
}

// newDir is a directory that PostgreSQL's account reaches when the tests run
// as root: below t.TempDir() it reaches none.
func newDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tendril-postgres-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A server that dies with its parent still writes while it shuts down.
		patience.Await(t, "no server is left in "+dir, func() bool { return len(processesOf(filepath.Join(dir, "pg", "data"))) == 0 })
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "pg")
}

// start starts a server that is stopped at the end of the test at the latest.
func start(t *testing.T, o Options) *Server {
	t.Helper()
	ctx, cancel := patience.Context(t.Context(), time.Minute)
	defer cancel()
	s, err := Start(ctx, o)
	if err != nil {
		t.Fatalf("Start(%s) = %v", o.DataDir, err)
	}
	t.Cleanup(func() { _ = s.Stop(context.Background()) })
	return s
}

func stop(t *testing.T, s *Server) {
	t.Helper()
	if err := s.Stop(context.Background()); err != nil {
		t.Fatalf("Stop() = %v", err)
	}
}

// query asks the server for one text.
func query(t *testing.T, s *Server, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var text string
	if err := conn.QueryRow(t.Context(), sql).Scan(&text); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return text
}

func execute(t *testing.T, s *Server, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
