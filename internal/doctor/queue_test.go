package doctor_test

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/doctor"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/testkit/pgtest/pgbouncer"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// change edits the queue's URL.
func (p *patient) change(t *testing.T, edit func(*url.URL)) {
	t.Helper()
	u, err := url.Parse(p.Config.Queue.URL)
	if err != nil {
		t.Fatal(err)
	}
	edit(u)
	p.Config.Queue.URL = u.String()
}

func param(name, value string) func(*url.URL) {
	return func(u *url.URL) {
		q := u.Query()
		q.Set(name, value)
		u.RawQuery = q.Encode()
	}
}

// Each step on the way to the database fails in its own words.
func TestQueueIsNotReached(t *testing.T) {
	t.Parallel()
	whole := healthy(t)
	for name, c := range map[string]struct {
		breaks func(*testing.T, *patient)
		says   []string
	}{
		"no such name": {func(t *testing.T, p *patient) {
			p.change(t, func(u *url.URL) { u.Host, u.RawQuery = "nowhere.invalid:5432", "" })
		}, []string{"DNS", "nowhere.invalid"}},
		"nobody listens": {func(t *testing.T, p *patient) {
			p.change(t, func(u *url.URL) { u.Host, u.RawQuery = "127.0.0.1:1", "" })
		}, []string{"TCP", "127.0.0.1:1", "firewall"}},
		"no TLS there": {func(t *testing.T, p *patient) { p.change(t, param("sslmode", "require")) }, []string{"TLS", "sslmode"}},
		"another server": {func(t *testing.T, p *patient) {
			p.change(t, func(u *url.URL) { u.Host = bouncer(t); u.RawQuery = "sslmode=disable" })
		}, []string{"Postgres", "not PostgreSQL's"}},
		"wrong password": {func(t *testing.T, p *patient) {
			p.change(t, func(u *url.URL) { u.User = url.UserPassword(u.User.Username(), "s3cret-word") })
		}, []string{"Postgres", "user and password"}},
		"no such database": {func(t *testing.T, p *patient) { p.change(t, func(u *url.URL) { u.Path = "/nothing" }) }, []string{"Postgres", `"nothing"`}},
		"a setting that a pooler refuses": {func(t *testing.T, p *patient) {
			p.Config.Queue.URL = pgbouncer.Start(t, p.URL, nil).URL(t, p.AgentURL(t)) + "&statement_timeout=9"
		}, []string{"pooler", "statement_timeout", "ALTER ROLE"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := whole.again(t)
			p.secrets = []string{"s3cret-word"}
			c.breaks(t, p)
			report := p.examine(t)
			want(t, report, "queue", doctor.Fail, c.says...)
			want(t, report, "token", doctor.Skipped, "queue")
			want(t, report, "clock", doctor.Skipped, "token")
			want(t, report, "git", doctor.OK)
		})
	}
}

func TestHTTPSQueueIsNotReached(t *testing.T) {
	t.Parallel()
	answer := func(status int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	}
	plain, secure := httptest.NewServer(answer(404)), httptest.NewTLSServer(answer(404))
	broken, redirects := httptest.NewServer(answer(503)), httptest.NewServer(http.RedirectHandler("https://elsewhere.example/", http.StatusFound))
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(func() { _ = silent.Close(); plain.Close(); secure.Close(); broken.Close(); redirects.Close() })
	for name, c := range map[string]struct {
		url  string
		says []string
	}{
		"no such name":      {"https://nowhere.invalid", []string{"DNS", "nowhere.invalid"}},
		"nobody listens":    {"https://127.0.0.1:1", []string{"TCP"}},
		"unknown authority": {secure.URL, []string{"TLS", "authority", "queue.ca_file"}},
		"no TLS there":      {"https" + strings.TrimPrefix(plain.URL, "http"), []string{"TLS", "does not speak it"}},
		"out of order":      {broken.URL, []string{"HTTP", "503"}},
		"leads elsewhere":   {redirects.URL, []string{"HTTP", "redirects"}},
		"hangs":             {"http://" + silent.Addr().String(), []string{"in time"}},
		"not a web server":  {"http://" + bouncer(t), []string{"HTTP"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := machine(t)
			p.Config.Queue.URL, p.Config.Queue.APIKey = c.url, "sb_publishable_x"
			report := p.examine(t)
			want(t, report, "queue", doctor.Fail, c.says...)
			want(t, report, "token", doctor.Skipped, "queue")
		})
	}
}

// bouncer answers every connection with a line that is not HTTP's.
func bouncer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("220 mail.example ESMTP\r\n"))
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-over })
	return l.Addr().String()
}

// What the database says of the token, the contract, the clock and the name.
func TestDatabaseSaysNo(t *testing.T) {
	t.Parallel()
	faults{
		"revoked token": {func(t *testing.T, p *patient) { p.Exec(t, "SELECT public.revoke_cluster_token($1)", p.Cluster) },
			"token", doctor.Fail, []string{"unknown, revoked or expired"}},
		"paused":         {func(t *testing.T, p *patient) { p.Exec(t, "UPDATE public.clusters SET paused_at = now()") }, "token", doctor.Warn, []string{"paused"}},
		"empty database": {func(t *testing.T, p *patient) { p.Exec(t, "DROP SCHEMA public CASCADE") }, "token", doctor.Fail, []string{"trellis migrate"}},
		"stranger's role": {func(t *testing.T, p *patient) {
			p.Exec(t, "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA public FROM tendril_agent")
		}, "token", doctor.Fail, []string{"tendril_agent"}},
		"older contract": {func(t *testing.T, p *patient) {
			p.Exec(t, "CREATE OR REPLACE FUNCTION tendril.contract_version() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'")
		}, "contract", doctor.Fail, []string{"only 1", "trellis migrate"}},
		"contract before": {func(t *testing.T, p *patient) {
			p.Exec(t, fmt.Sprintf("CREATE OR REPLACE FUNCTION tendril.contract_version() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT %d'", queue.Contract-1))
		}, "contract", doctor.Warn, []string{"one older", "trellis migrate"}},
		"newer contract": {func(t *testing.T, p *patient) {
			p.Exec(t, "CREATE OR REPLACE FUNCTION tendril.contract_version() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 9'")
		}, "contract", doctor.OK, []string{"9"}},
		"publication of all tables": {func(t *testing.T, p *patient) { p.Exec(t, "CREATE PUBLICATION everything FOR ALL TABLES") },
			"publications", doctor.Warn, []string{`"everything"`, "Realtime", "docs/SUPABASE.md"}},
		"publication of a schema": {func(t *testing.T, p *patient) { p.Exec(t, "CREATE PUBLICATION ours FOR TABLES IN SCHEMA public") },
			"publications", doctor.Warn, []string{`"ours"`}},
		"publication of some tables": {func(t *testing.T, p *patient) { p.Exec(t, "CREATE PUBLICATION by_name FOR TABLE public.clusters") },
			"publications", doctor.OK, nil},
		"name taken": {func(t *testing.T, p *patient) {
			q, err := p.open(queuetest.NewAgent("one"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(q.Close)
			if _, err := q.Register(t.Context()); err != nil {
				t.Fatal(err)
			}
		}, "name", doctor.Fail, []string{"one.example", "another name"}},
	}.run(t, healthy)
}

// What is wrong with the agent's own settings is told by a database as it is.
func TestDatabaseSaysNoToTheSettings(t *testing.T) {
	t.Parallel()
	ahead := func(by time.Duration) func(*testing.T, *patient) {
		return func(_ *testing.T, p *patient) { p.Now = func() time.Time { return time.Now().Add(by) } }
	}
	faults{
		"unknown token":      {unknownToken, "token", doctor.Fail, []string{"unknown, revoked or expired", "TENDRIL_API_TOKEN"}},
		"clock a little off": {ahead(20 * time.Second), "clock", doctor.Warn, []string{"ahead of", "NTP"}},
		"clock behind":       {ahead(-10*time.Hour - 30*time.Minute), "clock", doctor.Fail, []string{"10h", "behind"}},
		"clock far ahead":    {ahead(10*time.Hour + 30*time.Minute), "clock", doctor.Fail, []string{"10h", "ahead of"}},
		"deaf": {func(t *testing.T, p *patient) {
			p.Config.Queue.URL = pgbouncer.Start(t, p.URL, nil).URL(t, p.AgentURL(t))
		}, "wakes", doctor.Warn, []string{"transaction mode", "queue.listen_url"}},
		"told not to listen": {func(_ *testing.T, p *patient) { p.Config.Queue.ListenURL = "off" }, "wakes", doctor.OK, []string{"polled"}},
	}.run(t, healthy(t).again)
}

// A database that is older than the question how an agent stands.
func TestOlderDatabase(t *testing.T) {
	t.Parallel()
	older := healthy(t)
	older.Exec(t, "DROP FUNCTION public.check_agent")
	as := func(*testing.T, *patient) {}
	faults{
		"token":         {as, "token", doctor.OK, []string{"valid", "older"}},
		"contract":      {as, "contract", doctor.Warn, []string{"trellis migrate"}},
		"clock":         {as, "clock", doctor.Skipped, []string{"older"}},
		"unknown token": {unknownToken, "token", doctor.Fail, []string{"unknown, revoked or expired"}},
	}.run(t, older.again)
}

func unknownToken(_ *testing.T, p *patient) {
	p.Config.Queue.Token = config.NewSecret("tnd_" + strings.Repeat("x", 43))
}

// An agent that has joined by a key sees which it is, as admins see it.
func TestKeyIsNamed(t *testing.T) {
	t.Parallel()
	p := healthy(t)
	key, err := agentkey.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p.Config.Queue.Key = &key
	want(t, p.examine(t), "token", doctor.OK, "by this agent's own key: "+key.Words())
}
