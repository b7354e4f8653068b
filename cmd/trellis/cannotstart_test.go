package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// A trellis up that cannot start says why in one line, and what to do.
func TestUpThatCannotStart(t *testing.T) {
	t.Parallel()
	top := pgtest.Dir(t)
	if err := os.Chmod(filepath.Dir(binary(t)), 0o755); err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(top, "home")
	foreign, old := filepath.Join(top, "foreign"), filepath.Join(home, "old")
	if os.Geteuid() != 0 {
		foreign = "/root"
	}
	data := filepath.Join(old, "postgres", "data")
	err := errors.Join(os.MkdirAll(filepath.Join(top, "foreign"), 0o700), os.MkdirAll(data, 0o700), os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte("14\n"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	own(t, home)
	url := pgtest.OwnServer(t).URL
	trellisEnv(t, []string{"TRELLIS_DATABASE_URL=" + url}, "migrate").want(t, "migrate", exitOK)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), "INSERT INTO tendril.schema_migrations (version_id, is_applied) VALUES (9999, true)"); err != nil {
		t.Fatal(err)
	}
	const another = "with --data-dir or TRELLIS_DATA_DIR"
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"a taken port":                {[]string{"--listen", takenAddress(t)}, []string{"listen on 127.0.0.1:", "address already in use; stop the program that uses it, or choose another address with --listen or TRELLIS_LISTEN"}},
		"another user's directory":    {[]string{"--data-dir", foreign}, []string{foreign + " is not used: it belongs to another user (uid 0, you are ", "run this as that user", another}},
		"no right to make it":         {[]string{"--data-dir", filepath.Join(foreign, "x")}, []string{"cannot be used by this user", "permission denied", another}},
		"a full disk":                 {[]string{"--data-dir", "/proc/tendril"}, []string{"has 0 MB of disk space left and trellis up needs 128 MB: free some", another}}, // which takes nothing
		"data of an older PostgreSQL": {[]string{"--data-dir", old, "--trust-data-dir"}, []string{"no PostgreSQL 14 (which the data was made with) was found", "install that version (apt-get install postgresql-14"}},
	} {
		at := filepath.Join(home, strings.ReplaceAll(name, " ", "-"))
		saysInOneLine(t, name, ordinary(t, top, home, []string{"TRELLIS_LISTEN=127.0.0.1:0", "TRELLIS_DATA_DIR=" + at}, append([]string{"up"}, c.args...)...), c.want...)
	}
	newer := trellisEnv(t, []string{"TRELLIS_DATABASE_URL=" + url}, "up", "--data-dir", filepath.Join(top, "newer"))
	saysInOneLine(t, "a database of a newer version", newer, "the database is at migration 9999", "use a trellis at least as new")
}

// saysInOneLine wants a failure whose error is one line, the last.
func saysInOneLine(t *testing.T, what string, r result, texts ...string) {
	t.Helper()
	r.want(t, what, exitFailed, texts...)
	if lines := strings.Split(strings.TrimSpace(r.stderr), "\n"); !strings.HasPrefix(lines[len(lines)-1], "Error: ") {
		t.Errorf("%s: the error has more than one line:\n%s", what, r.stderr)
	}
}
