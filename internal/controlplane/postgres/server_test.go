package postgres

import (
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/dirlock"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

func TestRestartKeepsDataAndURL(t *testing.T) {
	t.Parallel()
	o := options(newDir(t))
	first := start(t, o)
	execute(t, first, "CREATE TABLE fruit AS SELECT 'fig' AS name")
	before := first.URL("postgres")
	stop(t, first)
	if err := first.Err(); err != nil {
		t.Errorf("Err() after Stop = %v, want nil", err)
	}
	if exists(filepath.Join(o.DataDir, "run")) {
		t.Error("the socket's directory outlives Stop")
	}
	second := start(t, o)
	if got := second.URL("postgres"); got != before {
		t.Errorf("URL after a restart = %s, want %s", got, before)
	}
	if got := query(t, second, "SELECT name FROM fruit"); got != "fig" {
		t.Errorf("row after a restart = %q, want fig", got)
	}
}

func TestServerIsPrivate(t *testing.T) {
	t.Parallel()
	o := options(newDir(t))
	o.Settings = map[string]string{"work_mem": "5MB"} // and fsync as it is
	s := start(t, o)
	for name, want := range map[string]string{
		"listen_addresses":                  "",
		"fsync":                             "on",
		"server_encoding":                   "UTF8",
		"password_encryption":               "scram-sha-256",
		"log_parameter_max_length_on_error": "0",
		"max_connections":                   "100",
		"work_mem":                          "5MB",
		"TimeZone":                          "UTC",
	} {
		if got := query(t, s, "SHOW "+name); got != want {
			t.Errorf("SHOW %s = %q, want %q", name, got, want)
		}
	}
	supported := query(t, s, "SELECT CASE WHEN 'lz4' = ANY (enumvals) THEN 'lz4' ELSE 'pglz' END FROM pg_settings WHERE name = 'default_toast_compression'")
	if got := query(t, s, "SHOW default_toast_compression"); got != supported {
		t.Errorf("default_toast_compression = %q, want %q", got, supported)
	}

	stranger, err := url.Parse(s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	stranger.User = url.UserPassword(superuser, "wrong")
	conn, err := pgx.Connect(t.Context(), stranger.String())
	if err == nil {
		_ = conn.Close(t.Context())
	}
	if refused, ok := errors.AsType[*pgconn.PgError](err); !ok || refused.Code != "28P01" {
		t.Errorf("connecting with a wrong password = %v, want SQLSTATE 28P01", err)
	}

	for path, want := range map[string]fs.FileMode{"password": 0o600, "lock": 0o600, logName: 0o600, "data": 0o700, "run": 0o700} {
		info, err := os.Stat(filepath.Join(o.DataDir, path))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("mode of %s = %o, want %o", path, got, want)
		}
	}
	secret, _ := os.ReadFile(filepath.Join(o.DataDir, "password"))
	if n := len(strings.TrimSpace(string(secret))); n < 43 { // 32 bytes in base64
		t.Errorf("the password has %d characters, want 43", n)
	}
	if exists(filepath.Join(o.DataDir, "password.init")) {
		t.Error("the copy of the password that initdb read is still there")
	}
	if group, err := syscall.Getpgid(s.process.Pid); err != nil || group != s.process.Pid {
		t.Errorf("process group of the server = %d, %v, want its own, %d", group, err, s.process.Pid)
	}
}

func TestTwoDirectoriesTwoServers(t *testing.T) {
	t.Parallel()
	a, b := start(t, options(newDir(t))), start(t, options(newDir(t)))
	execute(t, a, "CREATE TABLE only_here ()")
	if got := query(t, b, "SELECT coalesce(to_regclass('only_here')::text, 'none')"); got != "none" {
		t.Errorf("the other server's table = %q, want none", got)
	}
}

func TestSecondStartNamesTheHolder(t *testing.T) {
	t.Parallel()
	o := options(newDir(t))
	first := start(t, o)
	second, err := Start(t.Context(), o)
	if err == nil {
		stop(t, second)
	}
	inUse, ok := errors.AsType[*dirlock.InUseError](err)
	if !ok || inUse.Holder.PID != os.Getpid() || inUse.Dir != o.DataDir {
		t.Errorf("second Start = %v, want an InUseError with pid %d and %s", err, os.Getpid(), o.DataDir)
	}
	if got := query(t, first, "SELECT 'there'"); got != "there" {
		t.Errorf("the first server answers %q", got)
	}
}

func TestLongPath(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(newDir(t), strings.Repeat("long/", 30), "pg, \"quoted\" 'name'")
	s := start(t, options(dir))
	short, err := os.Readlink(filepath.Join(dir, "run"))
	if err != nil {
		t.Fatalf("run is no link to a shorter place: %v", err)
	}
	if got := query(t, s, "SELECT 'there'"); got != "there" {
		t.Errorf("query = %q", got)
	}
	// As after a SIGKILL: the next start removes what the link points to.
	_ = s.process.Kill()
	<-s.Done()
	s.lock.Release()
	again := start(t, options(dir))
	if exists(short) {
		t.Errorf("%s, left behind, is still there after the next start", short)
	}
	short = again.sockets
	stop(t, again)
	if exists(short) || exists(filepath.Join(dir, "run")) {
		t.Errorf("%s is still there after Stop", short)
	}
}

func TestRelativeAndOddPaths(t *testing.T) {
	t.Parallel()
	cwd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{`a "b", c's`, "my data+more"} {
		relative, err := filepath.Rel(cwd, filepath.Join(filepath.Dir(newDir(t)), name))
		if err != nil {
			t.Fatal(err)
		}
		s := start(t, options(relative))
		if got := query(t, s, "SELECT 'there'"); got != "there" {
			t.Errorf("query in %q = %q", name, got)
		}
	}
}

func TestUnexpectedEndIsReported(t *testing.T) {
	t.Parallel()
	s := start(t, options(newDir(t)))
	if err := s.Err(); err != nil {
		t.Errorf("Err() of a running server = %v, want nil", err)
	}
	_ = s.process.Kill()
	<-s.Done()
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), "ended unexpectedly (signal: killed)") {
		t.Errorf("Err() = %v, want ended unexpectedly (signal: killed)", err)
	}
	stop(t, s)
}

func TestStopIsForAllCallers(t *testing.T) {
	t.Parallel()
	s := start(t, options(newDir(t)))
	ends := make(chan error, 2)
	for range 2 {
		go func() { ends <- s.Stop(context.Background()) }()
	}
	for range 2 {
		if err := <-ends; err != nil {
			t.Errorf("Stop() = %v", err)
		}
	}
	select {
	case <-s.Done():
	default:
		t.Error("Stop returned before the server ended")
	}
	stop(t, s) // once more does no harm
}

// TestStopInsists has a server that cannot react: stopped by SIGSTOP, it takes
// neither SIGINT nor SIGQUIT.
func TestStopInsists(t *testing.T) {
	t.Parallel()
	o := options(newDir(t))
	s := start(t, o)
	execute(t, s, "CREATE TABLE kept ()")
	if err := s.process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Stop(ctx); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("Stop() = %v, want that it was killed", err)
	}
	execute(t, start(t, o), "TABLE kept")
}

func TestStartFailureQuotesTheLog(t *testing.T) {
	t.Parallel()
	o := options(newDir(t))
	o.Settings = map[string]string{"fsync": "off", "max_connections": "many"}
	s, err := Start(t.Context(), o)
	if err == nil {
		stop(t, s)
		t.Fatal("Start with a bad setting succeeded")
	}
	for _, want := range []string{"could not start", `invalid value for parameter "max_connections": "many"`, logName} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Start = %v, want it to contain %q", err, want)
		}
	}
	start(t, options(o.DataDir)) // and nothing is in the way of a good one
}

func TestLostPasswordIsNamed(t *testing.T) {
	t.Parallel()
	o := options(newDir(t))
	stop(t, start(t, o))
	path := filepath.Join(o.DataDir, "password")
	for _, c := range []struct {
		name, content, want string
	}{
		{"missing", "", "is missing or empty"},
		{"wrong", "wrong\n", "does not accept the password in " + path},
	} {
		if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Start(t.Context(), o)
		if err == nil {
			stop(t, s)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Start with a %s password = %v, want it to contain %q", c.name, err, c.want)
		}
	}
}

// TestStopDuringStart cancels a start at each of its steps; what is left must
// not run and must not hinder the next start.
func TestStopDuringStart(t *testing.T) {
	t.Parallel()
	o := options(newDir(t))
	for _, step := range []string{"lock", "data.new", "data", "run", logName, "data/postmaster.pid", "run/" + socketName} {
		// Those that a start before left are no sign that this one has come so far.
		if step == logName {
			_ = os.Remove(filepath.Join(o.DataDir, step))
		}
		if err := cancelAt(t, o, filepath.Join(o.DataDir, step)); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Start, cancelled at %s = %v, want context.Canceled", step, err)
		}
		if pids := processesOf(filepath.Join(o.DataDir, "data")); len(pids) > 0 {
			t.Errorf("still running after a cancel at %s: %v", step, pids)
		}
	}
	execute(t, start(t, o), "CREATE TABLE fruit ()")
}

// cancelAt starts a server and cancels the start as soon as a file is there.
// Where the server was quicker, it is stopped.
func cancelAt(t *testing.T, o Options, path string) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		s, err := Start(ctx, o)
		if err == nil {
			err = s.Stop(context.Background())
		}
		ended <- err
	}()
	patience.Await(t, path, func() bool { return exists(path) || len(ended) > 0 }) // it may be gone again
	cancel()
	return <-ended
}
