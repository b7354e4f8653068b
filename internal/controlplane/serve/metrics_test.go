package serve_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	"github.com/tendril-run/tendril/internal/testkit/wiretest"
)

// lacks returns those of the series that a scrape does not have.
func lacks(text string, series ...string) (missing []string) {
	for _, s := range series {
		if !strings.Contains("\n"+text, "\n"+s+"\n") {
			missing = append(missing, s)
		}
	}
	return missing
}

// Every process of a control plane tells the same of the database, and each for
// itself what it did.
func TestMetricsOfAKnownScene(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	q, err := pgqueue.New(t.Context(), pgqueue.Options{URL: w.AgentURL(t), Token: w.Token, Agent: queuetest.NewAgent("one")})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Deploy(t, "a")
	claim := uuid.New()
	if a, err := q.Claim(t.Context(), claim); err != nil || a == nil {
		t.Fatalf("Claim() = %v, %v, want an assignment", a, err)
	}
	for _, workspace := range []string{"a", "b", "c"} {
		w.Deploy(t, workspace)
	}
	first, said := options(w.URL)
	second, _ := options(w.URL)
	public, monitor := watch(t, first)
	_, other := watch(t, second)
	client := &http.Client{Transport: &http.Transport{}}
	for _, path := range []string{"/api/v1/provisions/" + uuid.NewString(), "/api/v1/no/such", "/healthz", "/assets/none", "/no/page?token=tnd_secret"} {
		get(t, client, public+path)
	}
	for range 2 {
		post(t, public+"/rest/v1/rpc/agent_heartbeat", `{"p_token_hash":"`+strings.Repeat("ab", 32)+`","p_instance":"`+uuid.NewString()+`","p_boot":"`+uuid.NewString()+`","p_claims":[]}`)
	}
	post(t, public+"/rest/v1/rpc/drop_everything", `{}`)

	cluster := fmt.Sprintf("{cluster_id=%q}", w.Cluster)
	state := func(state string) string {
		return fmt.Sprintf("trellis_agents{cluster_id=%q,state=%q}", w.Cluster, state)
	}
	ofDatabase := []string{
		"trellis_database_up 1", "trellis_statistics_up 1", "trellis_queue_depth" + cluster + " 3", "trellis_queue_runnable" + cluster + " 2", "trellis_running_claims" + cluster + " 1",
		`trellis_provisions{status="QUEUED"} 3`, `trellis_provisions{status="PROCESSING"} 1`, `trellis_provisions{status="AWAITING_APPROVAL"} 0`,
		state("online") + " 1", state("stale") + " 0", state("offline") + " 0", "trellis_cluster_paused" + cluster + " 0", "trellis_clusters_omitted 0", "trellis_leases_overdue 0",
		fmt.Sprintf("trellis_contract_version %d", queue.Contract), "trellis_webhook_deliveries_waiting 0",
	}
	ofProcess := []string{
		`trellis_http_requests_total{code="4xx",method="GET",route="/api/v1/provisions/{ref}"} 1`, `trellis_http_requests_total{code="4xx",method="GET",route="/api/"} 1`,
		`trellis_http_requests_total{code="2xx",method="GET",route="/healthz"} 1`, `trellis_http_requests_total{code="4xx",method="GET",route="/assets/"} 1`,
		`trellis_http_requests_total{code="3xx",method="GET",route="/"} 1`, `trellis_http_requests_total{code="4xx",method="POST",route="/rest/v1/"} 3`,
		`trellis_http_request_duration_seconds_count{route="/api/v1/provisions/{ref}"} 1`,
		`trellis_rpc_calls_total{function="agent_heartbeat",result="refused"} 2`, `trellis_rpc_calls_total{function="other",result="refused"} 1`,
		`trellis_rpc_call_duration_seconds_count{function="agent_heartbeat"} 2`, "trellis_reaped_total 0", `trellis_duty_failures_total{duty="reap"} 0`,
		"trellis_live_listening 1", "trellis_viewers 0", `trellis_database_connections_max{pool="agents"} 14`, `trellis_build_info{version="test"} 1`,
	}
	var text string
	patience.AwaitShowing(t, "what the test wants", said.String, func() bool { // the hub listens a moment after the start, and a slow one makes the agent stale
		if _, err := q.Heartbeat(t.Context(), queue.Beat{Claims: []uuid.UUID{claim}}); err != nil {
			t.Fatal(err)
		}
		_, text = get(t, client, monitor+"/metrics")
		return len(lacks(text, "trellis_live_listening 1", state("online")+" 1")) == 0
	})
	if missing := lacks(text, append(ofDatabase, ofProcess...)...); len(missing) > 0 {
		t.Errorf("the scrape lacks\n%s\nit is\n%s", strings.Join(missing, "\n"), ours(text))
	}
	_, beside := get(t, client, other+"/metrics")
	if missing := lacks(beside, ofDatabase...); len(missing) > 0 {
		t.Errorf("another process lacks\n%s\nit tells\n%s", strings.Join(missing, "\n"), ours(beside))
	}
	for _, never := range []string{"agent_heartbeat", "drop_everything"} {
		if strings.Contains(beside, never) || strings.Contains(text, "drop_") {
			t.Errorf("a process tells %s, which it was not asked or is not ours", never)
		}
	}
	for _, secret := range []string{"tnd_", "/no/page", "no/such", strings.Repeat("ab", 32), w.Token} {
		if strings.Contains(text, secret) {
			t.Errorf("the scrape has %q in it", secret)
		}
	}
}

// ours are the lines of a scrape that tell of a control plane.
func ours(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "trellis_") && !strings.Contains(line, "_bucket") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// Leases that this process ends are counted by it.
func TestCountsReapedLeases(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	q, err := pgqueue.New(t.Context(), pgqueue.Options{URL: w.AgentURL(t), Token: w.Token, Agent: queuetest.NewAgent("one")})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, workspace := range []string{"a", "b"} {
		w.Deploy(t, workspace)
		if a, err := q.Claim(t.Context(), uuid.New()); err != nil || a == nil {
			t.Fatalf("Claim() = %v, %v, want an assignment", a, err)
		}
	}
	w.Exec(t, "UPDATE tendril.claims SET lease_until = clock_timestamp() - interval '1 second'")
	o, said := options(w.URL)
	_, monitor := watch(t, o)
	client := &http.Client{Transport: &http.Transport{}}
	patience.AwaitShowing(t, "what the test wants", said.String, func() bool {
		_, text := get(t, client, monitor+"/metrics")
		return len(lacks(text, "trellis_reaped_total 2", `trellis_duty_items_total{duty="reap"} 2`)) == 0
	})
}

// A database that has gone silent is told of quickly, and nothing of it that was
// true before; the process is not to be restarted for it, and not to be sent people.
func TestMetricsWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	w.Deploy(t, "a")
	proxy := wiretest.New(t, w.URL)
	o, said := options(proxy.URL(w.URL))
	_, monitor := watch(t, o)
	client := &http.Client{Transport: &http.Transport{}, Timeout: time.Minute}
	depth := fmt.Sprintf("trellis_queue_depth{cluster_id=%q} 1", w.Cluster)
	there := func() bool {
		_, text := get(t, client, monitor+"/metrics")
		return len(lacks(text, "trellis_database_up 1", depth)) == 0
	}
	told := func() int { return strings.Count(said.String(), "numbers cannot be had") }
	patience.AwaitShowing(t, "what the test wants", said.String, there)
	before := told()
	proxy.BlackHole()
	patience.AwaitShowing(t, "what the test wants", said.String, func() bool { // the answer of before is given for some seconds
		var scrapers sync.WaitGroup
		var away sync.Map
		for n := range 5 {
			scrapers.Go(func() {
				began := time.Now()
				_, text := get(t, client, monitor+"/metrics")
				if took := time.Since(began); took > 15*time.Second { // two, and what the machine takes
					t.Errorf("a scrape took %s", took)
				}
				if len(lacks(text, "trellis_database_up 0", "trellis_statistics_up 0")) == 0 {
					away.Store(n, true)
					if strings.Contains(text, "trellis_queue_") || strings.Contains(text, "trellis_agents") || strings.Contains(text, "trellis_provisions") {
						t.Errorf("what stood in the database is told as if it were known:\n%s", ours(text))
					}
				}
			})
		}
		scrapers.Wait()
		_, is := away.Load(0)
		return is
	})
	if status, body := get(t, client, monitor+"/healthz"); status != http.StatusOK || !strings.Contains(body, `"live":`) {
		t.Errorf("GET /healthz = %d %s, want 200: it is not the process that is away", status, body)
	}
	if status, body := get(t, client, monitor+"/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, `"database":{"ok":false,"contract":0}`) {
		t.Errorf("GET /readyz = %d %s, want 503", status, body)
	}
	if n := told() - before; n != 1 {
		t.Errorf("the log tells of it %d times, want once:\n%s", n, said)
	}
	proxy.Pass()
	patience.AwaitShowing(t, "what the test wants", said.String, func() bool {
		status, _ := get(t, client, monitor+"/readyz")
		return status == http.StatusOK && there()
	})
}

// A database that is served and has not the newest migration has no numbers, and
// the log says what to do.
func TestMetricsOfADatabaseToMigrate(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, queuetest.Migrated)
	if _, err := db.Conn(t).Exec(t.Context(), "DROP FUNCTION tendril.statistics"); err != nil {
		t.Fatal(err)
	}
	o, said := options(db.URL)
	_, monitor := watch(t, o)
	client := &http.Client{Transport: &http.Transport{}}
	_, text := get(t, client, monitor+"/metrics")
	if missing := lacks(text, "trellis_database_up 1", "trellis_statistics_up 0"); len(missing) > 0 || strings.Contains(text, "trellis_queue_") {
		t.Errorf("the scrape is %s, want a database that is up, and no numbers of it", ours(text))
	}
	if !strings.Contains(said.String(), "trellis migrate") {
		t.Errorf("the log is %s, want it to say what to do", said)
	}
}
