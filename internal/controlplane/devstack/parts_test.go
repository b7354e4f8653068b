package devstack

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

func TestAgentConfigIsWhatTheAgentReads(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), `with "quotes" and blanks`)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	o := Options{DataDir: dir, Slots: 3, AllowRepos: []string{"https://git.example/acme/**"}}
	if err := instance.WriteSecret(o.path("token"), []byte("tnd_x\n")); err != nil {
		t.Fatal(err)
	}
	file, err := writeAgentConfig(o, "up-here", "postgres://a:p%22w@/db?host=%2Frun", nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file, nil)
	if err != nil {
		t.Fatalf("Load() = %v, want nil", err)
	}
	if c.Name != "up-here" || c.Slots != 3 || c.DataDir != o.path("agent") || c.Queue.URL != "postgres://a:p%22w@/db?host=%2Frun" ||
		c.Queue.Token.Reveal() != "tnd_x" || !c.Policy.AllowFile || !slices.Contains(c.Policy.Repos, "https://git.example/acme/**") || len(c.Policy.Repos) != 2 {
		t.Errorf("Load() = %+v, want what was written", c)
	}
	for _, name := range []string{file, o.path("token")} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v, want 0600", name, info.Mode(), err)
		}
	}
}

func TestAgentEnvKeepsOurSecretsBack(t *testing.T) {
	t.Parallel()
	got := agentEnv([]string{
		"PATH=/bin", "AWS_PROFILE=x", "TRELLIS_DATABASE_URL=secret", "PGPASSWORD=secret", "TENDRIL_API_TOKEN=other", "TENDRIL_QUEUE_URL=other",
		"TENDRIL_SLOTS=9", "TENDRIL_POSTGRES_REPOSITORY=x", "TENDRIL_ENGINE_DIR=/opt", "TENDRIL_DRAIN_TIMEOUT=1m",
	})
	if want := []string{"PATH=/bin", "AWS_PROFILE=x", "TENDRIL_ENGINE_DIR=/opt", "TENDRIL_DRAIN_TIMEOUT=1m"}; !slices.Equal(got, want) {
		t.Errorf("agentEnv() = %v, want %v", got, want)
	}
}

func TestErrorsArePickedOutOfTheLog(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		`{"time":"x","level":"INFO","msg":"registered"}`:                        "",
		`{"time":"x","level":"ERROR","msg":"no","error":"because","claim":"c"}`: "no (claim: c, error: because)",
		"panic: oh": "panic: oh",
		"":          "",
	} {
		if got := errorText([]byte(line + "\n")); got != want {
			t.Errorf("errorText(%s) = %q, want %q", line, got, want)
		}
	}
}

func TestFollowLogReportsWholeLinesOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "agent.log")
	write := func(text string) {
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err == nil {
			_, err = file.WriteString(text)
			err = errors.Join(err, file.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write("before\n")
	var heard notes
	l := followLog(path, heard.add)
	write("one\ntw")
	patience.Await(t, "the first line", func() bool { return heard.String() == "one" })
	write("o\n")
	l.close()
	if got := heard.String(); got != "one\ntwo" {
		t.Errorf("heard %q, want each whole line once", got)
	}
}

func TestOptionsAreCheckedFirst(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	for name, tt := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"slots":      {func(o *Options) { o.Slots = 65 }, "from 1 to 64"},
		"pattern":    {func(o *Options) { o.AllowRepos = []string{"ext::sh"} }, "[policy] repos"},
		"database":   {func(o *Options) { o.DatabaseURL = "host=x password=s3cret" }, "postgres://"},
		"characters": {func(o *Options) { o.DataDir += "/wh?t" }, "plain letters"},
	} {
		o, _ := options(t, dir)
		tt.change(&o)
		_, err := Start(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: Start() = %v, want an error with %q and no secret", name, err, tt.want)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a refused start made the data directory")
	}
}

// PostgreSQL takes the verifier for the password, and nothing else for it.
func TestScramVerifier(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	l := login{Role: "login_" + strings.ToLower(filepath.Base(t.TempDir())) + strings.ToLower(db.Name), Password: `pass"'\word`}
	verifier, err := scramVerifier(l.Password)
	if err != nil {
		t.Fatal(err)
	}
	conn := db.Conn(t)
	if _, err := conn.Exec(t.Context(), `CREATE ROLE "`+l.Role+`" LOGIN PASSWORD '`+verifier+`'`); err != nil {
		t.Fatal(err)
	}
	address, err := l.url(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	if got := query(t, address, "SELECT session_user::text"); got != l.Role {
		t.Errorf("session_user = %s, want %s", got, l.Role)
	}
	l.Password += "x"
	if address, err = l.url(db.URL); err != nil {
		t.Fatal(err)
	}
	if other, err := pgx.Connect(t.Context(), address); err == nil {
		t.Error("another password is taken as well")
		_ = other.Close(t.Context())
	}
}

// Sample data cannot be taken out of a database that is somebody's.
func TestSampleIsForAPrivateDatabase(t *testing.T) {
	t.Parallel()
	o, _ := options(t, t.TempDir())
	o.Sample, o.DatabaseURL = true, "postgres://me@db.example/tendril"
	if _, err := o.complete(); err == nil || !strings.Contains(err.Error(), "private database") {
		t.Errorf("complete(sample data for a database of the user's own) = %v, want it refused", err)
	}
	o.DatabaseURL = ""
	if _, err := o.complete(); err != nil {
		t.Errorf("complete(sample data) = %v, want nil", err)
	}
}
