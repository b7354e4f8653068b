package main

import (
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/secrettest"
)

// A password that is changed, then the user, in a mounted file: serve goes on with
// it, every connection of it, without a restart.
func testServeTakesAChangedPassword(t *testing.T, runtime instance.Runtime) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), runtime.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	exec := func(statement string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), statement, args...); err != nil {
			t.Fatal(err)
		}
	}
	as := func(user, password string) map[string]string {
		u, err := url.Parse(runtime.DatabaseURL)
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword(user, password)
		return map[string]string{"url": u.String() + "\n"}
	}
	// cut ends the sessions of a user, which would outlive its password.
	cut := func(user string) {
		exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", user)
	}
	exec("CREATE ROLE rotated LOGIN SUPERUSER PASSWORD 's3cret-one'")
	secret := secrettest.Mount(t, as("rotated", "s3cret-one"))
	s := begin(t, "serve", "--database-url-file", secret.Path("url"), "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")
	s.await(t, "serving people and agents")
	public := address(s, "serving people and agents")
	monitor := address(s, "serving metrics and probes")
	// works waits until that user has every kind of session that serve keeps, and all answers.
	works := func(user string) {
		t.Helper()
		last := ""
		patience.AwaitShowing(t, "serve at work as "+user, func() string { return last + "\n" + s.said.String() }, func() bool {
			var kinds []string
			if err := conn.QueryRow(t.Context(), "SELECT coalesce(array_agg(DISTINCT application_name ORDER BY application_name), '{}') FROM pg_stat_activity WHERE usename = $1", user).Scan(&kinds); err != nil {
				t.Fatal(err)
			}
			ready, _ := ask(t, http.MethodGet, monitor+"/readyz", "")
			health, _ := ask(t, http.MethodGet, public+"/healthz", "")
			_, metrics := ask(t, http.MethodGet, monitor+"/metrics", "")
			_, _ = ask(t, http.MethodGet, public+"/api/v1/provisions", "") // by the pool for people
			last = strings.Join(kinds, ", ")
			return ready == http.StatusOK && health == http.StatusOK && strings.Contains(metrics, "\ntrellis_live_listening 1\n") &&
				last == "trellis, trellis gateway, trellis live, trellis serve"
		})
		wantCall(t, public)
	}
	works("rotated")

	exec("ALTER ROLE rotated PASSWORD 's3cret-two'")
	cut("rotated")
	patience.AwaitShowing(t, "a database that lets nobody in", s.said.String, func() bool {
		ready, _ := ask(t, http.MethodGet, monitor+"/readyz", "")
		return ready == http.StatusServiceUnavailable
	})
	secret.Replace(t, as("rotated", "s3cret-two"))
	works("rotated")

	var owner string
	if err := conn.QueryRow(t.Context(), "SELECT quote_ident(current_user)").Scan(&owner); err != nil {
		t.Fatal(err)
	}
	exec("CREATE ROLE replaced LOGIN PASSWORD 's3cret-three' IN ROLE anon, authenticated, " + owner)
	secret.Replace(t, as("replaced", "s3cret-three"))
	exec("ALTER ROLE rotated NOLOGIN")
	cut("rotated")
	works("replaced")

	select {
	case <-s.done:
		t.Fatal("serve has ended")
	default:
	}
	if text := s.said.String(); strings.Contains(text, "s3cret") || strings.Count(text, "serving people and agents") != 1 {
		t.Errorf("serve has started anew, or shows a password:\n%s", text)
	}
}

// address is that of the line of a log which has this text.
func address(s *session, text string) string {
	return regexp.MustCompile(text + `.* url=(http://[0-9.:]+)`).FindStringSubmatch(s.said.String())[1]
}

// ask sends one request over a connection of its own, and returns the answer.
func ask(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Close = true
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(answer)
}
