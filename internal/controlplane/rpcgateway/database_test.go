package rpcgateway_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/postgrest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	"github.com/tendril-run/tendril/internal/testkit/recorded"
	"github.com/tendril-run/tendril/internal/testkit/wiretest"
)

// A database that is away is told of at once, or soon, and found again.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	_, world := recorded.Agent(t)
	db := pgtest.New(t, queuetest.Migrated)
	mustExec(t, db.Conn(t), world)
	wire := wiretest.New(t, db.URL)
	url := serve(t, rpcgateway.Options{DatabaseURL: wire.URL(db.URL) + "&connect_timeout=1", StatementTimeout: 100 * time.Millisecond})
	wantAway := func(when string, codes ...string) {
		t.Helper()
		began := time.Now()
		got := post(t, url, "agent_heartbeat", heartbeat)
		known := false
		for _, code := range codes {
			known = known || strings.Contains(string(got.body), `"code":"`+code+`"`)
		}
		if got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" || !known {
			t.Errorf("%s = %d %s, Retry-After %q, want 503 with one of %v", when, got.status, got.body, got.header.Get("Retry-After"), codes)
		}
		if strings.Contains(string(got.body), "127.0.0.1") || time.Since(began) > time.Minute {
			t.Errorf("%s = %s after %s, want no address, and soon", when, got.body, time.Since(began))
		}
	}
	wire.Refuse()
	wire.Cut()
	wantAway("never connected, refused", "PGRST000", "PGRST002")
	wire.Pass()
	reached := func() bool {
		return strings.Contains(string(post(t, url, "agent_heartbeat", heartbeat).body), unregistered)
	}
	patience.Await(t, "the database again", reached)
	wire.BlackHole()
	wantAway("an answer that never comes", "PGRST001", "PGRST000")
	wire.Pass()
	patience.Await(t, "the database again", reached)
	wire.Refuse()
	wire.Cut()
	wantAway("connections that were cut", "PGRST000", "PGRST001")
	// They wait side by side, not one after the other.
	wire.BlackHole()
	began := time.Now()
	var calls sync.WaitGroup
	for range 60 {
		calls.Go(func() {
			if got := post(t, url, "agent_heartbeat", heartbeat); got.status != http.StatusServiceUnavailable && got.status != http.StatusGatewayTimeout {
				t.Errorf("a call beside others = %d %s, want 503 or 504", got.status, got.body)
			}
		})
	}
	calls.Wait()
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("60 calls at once were answered after %s, want some seconds", took)
	}
}

// A server that was the primary and is not any more keeps its connections: they
// are given up, and the address may lead to another.
func TestPrimaryThatWas(t *testing.T) {
	t.Parallel()
	url, db := story(t, rpcgateway.Options{MaxConns: 1})
	conn := db.Conn(t)
	set := func(action string) {
		t.Helper()
		mustExec(t, conn, "DO $$BEGIN EXECUTE format('ALTER DATABASE %I "+action+"', current_database()); END$$")
	}
	set("SET default_transaction_read_only = on")
	// The gateway's connections are from before, its listener's among them.
	mustExec(t, conn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
	got := post(t, url, "register_agent", registering)
	for range 20 { // one that has just been ended may be taken once
		if got.status != http.StatusServiceUnavailable {
			break
		}
		got = post(t, url, "register_agent", registering)
	}
	if !strings.Contains(string(got.body), `"code":"25006"`) {
		t.Fatalf("a call of a server that is read-only = %d %s, want that said", got.status, got.body)
	}
	set("RESET default_transaction_read_only")
	if got := post(t, url, "register_agent", registering); got.status != http.StatusOK {
		t.Errorf("a call when the address leads to a primary = %d %s, want 200", got.status, got.body)
	}
}

const registering = `{"p_token_hash":"` + tokenHash + `","p_agent":{"instance_id":"a6000000-0000-4000-8000-000000000001",` +
	`"boot_id":"b0000000-0000-4000-8000-000000000001","name":"one","host":"one.example","version":"1","contract":2,"slots":2}}`

// A migration adds an argument, then a function changes its type: no restart.
func TestMigrationNeedsNoNewGateway(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, queuetest.Migrated)
	conn := db.Conn(t)
	mustExec(t, conn, `CREATE FUNCTION public.probe(p_a int) RETURNS int LANGUAGE sql AS 'SELECT p_a'; GRANT EXECUTE ON FUNCTION public.probe TO anon`)
	url := serve(t, rpcgateway.Options{DatabaseURL: db.URL, Functions: []string{"probe", "later"}})
	if got := post(t, url, "probe", `{"p_a":1}`); got.status != http.StatusOK || string(got.body) != "1" {
		t.Fatalf("probe = %d %s, want 200 1", got.status, got.body)
	}
	// Its old form is gone before the notice has come.
	mustExec(t, conn, `BEGIN; DROP FUNCTION public.probe; CREATE FUNCTION public.probe(p_a text, p_b int DEFAULT 2) RETURNS text LANGUAGE sql AS 'SELECT p_a || p_b';
		GRANT EXECUTE ON FUNCTION public.probe TO anon; COMMIT`)
	if got := post(t, url, "probe", `{"p_a":"x"}`); got.status != http.StatusBadRequest && string(got.body) != `"x2"` {
		t.Errorf("probe after it was changed = %d %s, want the new one, or the old one's no to a text", got.status, got.body)
	}
	mustExec(t, conn, "NOTIFY pgrst, 'reload schema'")
	patience.Await(t, "the new argument", func() bool { return string(post(t, url, "probe", `{"p_a":"x","p_b":3}`).body) == `"x3"` })
	// What answers a set now could still be called as before: only the notice tells.
	mustExec(t, conn, `BEGIN; DROP FUNCTION public.probe; CREATE FUNCTION public.probe(p_a text, p_b int) RETURNS SETOF text LANGUAGE sql AS 'SELECT p_a || p_b';
		GRANT EXECUTE ON FUNCTION public.probe TO anon; NOTIFY pgrst, 'reload schema'; COMMIT`)
	patience.Await(t, "the notice", func() bool { return string(post(t, url, "probe", `{"p_a":"x","p_b":3}`).body) == `["x3"]` })
	if got := post(t, url, "later", `{}`); got.status != http.StatusNotFound {
		t.Errorf("a function that is not there yet = %d, want 404", got.status)
	}
	mustExec(t, conn, `CREATE FUNCTION public.later() RETURNS int LANGUAGE sql AS 'SELECT 7'; GRANT EXECUTE ON FUNCTION public.later TO anon`)
	patience.Await(t, "a function that came without a notice", func() bool { return string(post(t, url, "later", `{}`).body) == "7" })
}

// Each call is one of role anon, and none can leave anything to the next.
func TestEachCallIsAnon(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, queuetest.Migrated)
	mustExec(t, db.Conn(t), `
		CREATE FUNCTION public.who() RETURNS text LANGUAGE sql AS $$SELECT current_user || ' ' || current_setting('role') || ' ' || current_setting('request.jwt.claims') || ' ' || current_setting('statement_timeout') || ' ' || current_setting('lock_timeout')$$;
		CREATE FUNCTION public.become(p_role text, p_fail boolean) RETURNS text LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM set_config('role', p_role, false), set_config('statement_timeout', '6s', false), set_config('request.jwt.claims', 'x', false);
			IF p_fail THEN RAISE 'no'; END IF;
			RETURN current_user;
		END $$;
		CREATE FUNCTION public.forbidden() RETURNS int LANGUAGE sql AS 'SELECT 1';
		REVOKE EXECUTE ON FUNCTION public.forbidden FROM PUBLIC, anon;
		GRANT EXECUTE ON FUNCTION public.who, public.become TO anon`)
	url := serve(t, rpcgateway.Options{DatabaseURL: db.URL, MaxConns: 1, Functions: []string{"who", "become", "forbidden"}, StatementTimeout: 7 * time.Second, LockTimeout: time.Second})
	const want = `"anon anon {\"role\":\"anon\"} 7s 1s"`
	for _, before := range []string{`{"p_role":"none","p_fail":false}`, `{"p_role":"none","p_fail":true}`, `{"p_role":"authenticated","p_fail":false}`} {
		post(t, url, "become", before)
		if got := post(t, url, "who", `{}`); string(got.body) != want {
			t.Errorf("who after %s = %s, want %s", before, got.body, want)
		}
	}
	got := post(t, url, "forbidden", `{}`)
	if got.status != http.StatusUnauthorized || !strings.Contains(string(got.body), `"code":"42501"`) || got.header.Get("WWW-Authenticate") != "Bearer" {
		t.Errorf("a function that anon may not call = %d %s, want 401 42501", got.status, got.body)
	}
}

// However many call at once, the database has few connections; who finds all
// busy for long is told so.
func TestFewConnections(t *testing.T) {
	t.Parallel()
	url, db := story(t, rpcgateway.Options{MaxConns: 3})
	var calls sync.WaitGroup
	for range 100 {
		calls.Go(func() { post(t, url, "agent_heartbeat", heartbeat) })
	}
	conn := db.Conn(t)
	most := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		calls.Wait()
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		var now int
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'trellis gateway'").Scan(&now); err != nil {
			t.Fatal(err)
		}
		most = max(most, now)
	}
	if most < 2 || most > 4 {
		t.Errorf("100 calls at once made %d connections, want 4 at the most: 3 and the listener", most)
	}
}

// What the database takes too long for ends there, not only here.
func TestStatementTimeout(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, queuetest.Migrated)
	mustExec(t, db.Conn(t), `CREATE FUNCTION public.slow() RETURNS void LANGUAGE sql AS 'SELECT pg_sleep(60)'; GRANT EXECUTE ON FUNCTION public.slow TO anon`)
	url := serve(t, rpcgateway.Options{DatabaseURL: db.URL, MaxCalls: 1, Functions: []string{"slow"}, StatementTimeout: 8 * time.Second})
	first := make(chan answer, 1)
	go func() { first <- post(t, url, "slow", `{}`) }()
	conn := db.Conn(t)
	patience.Await(t, "the only call to be under way", func() bool {
		var running bool
		err := conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep')`).Scan(&running)
		return err == nil && running
	})
	got := post(t, url, "slow", `{}`)
	if got.status != http.StatusServiceUnavailable || !strings.Contains(string(got.body), "too many calls") || got.header.Get("Retry-After") != "1" {
		t.Errorf("a second call = %d %s, want 503, to come back in a second", got.status, got.body)
	}
	want := recorded.Response{}
	for _, e := range recorded.Failures(t) {
		if e.Name == "the statement took too long" {
			want = e.Response
		}
	}
	check(t, <-first, want)
}

// What recorded failures say of PostgREST, the gateway says in the same words.
func TestFailuresInTheSameWords(t *testing.T) {
	t.Parallel()
	url := serve(t, rpcgateway.Options{DatabaseURL: "postgres://nobody:s3cret@127.0.0.1:1/none"})
	var want recorded.Response
	for _, e := range recorded.Failures(t) {
		if e.Name == "the functions could not be read" {
			want = e.Response
		}
	}
	got := post(t, url, "agent_heartbeat", heartbeat)
	check(t, got, want)
	if !strings.HasPrefix(got.header.Get("Content-Type"), postgrest.ContentType) {
		t.Errorf("Content-Type = %q, want JSON", got.header.Get("Content-Type"))
	}
}
