package agent

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

// observedSetup is of an agent that serves how it is.
func (w *world) observedSetup() setup {
	s := w.setup()
	s.Margin = time.Minute
	return s
}

// calls is longer than calls to the database take in these tests.
const calls = 5 * time.Second

func TestMetricsOfRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.observedSetup())
	a.measures(t, map[string]float64{
		`tendril_build_info{version="test"}`: 1, `tendril_slots`: 2, `tendril_slots_busy`: 0, `tendril_claims_total{operation="apply"}`: 0,
		`tendril_spool_bytes`: 0, `tendril_log_lag_seconds`: 0, `tendril_log_chunks_total`: 0, `tendril_queue_wait_seconds_count`: 0,
	})
	id := w.deploy(t, "prod", "print 2", "touch running", "hold go", "apply", "print 3", "succeed")
	w.touched(t, "running")
	w.logs(t, id, lines(2))
	a.measures(t, map[string]float64{
		`tendril_slots_busy`: 1, `tendril_claims_total{operation="apply"}`: 1, `tendril_queue_wait_seconds_count`: 1,
		`tendril_log_lag_seconds`: 0, `tendril_provisions_total{code="", operation="apply", status="SUCCESS"}`: 0,
		`tendril_stage_duration_seconds_count{stage="checkout"}`: 0,
	})
	if got := a.scrape(t)[`tendril_spool_bytes`]; got <= 0 {
		t.Errorf("tendril_spool_bytes = %v during a run, want more than nothing", got)
	}
	w.release(t, "go")
	w.becomes(t, id, "SUCCESS")
	w.becomes(t, w.deploy(t, "dev", "die"), "FAILED/exec_died")
	w.becomes(t, w.deploy(t, "test", "nonsense"), "FAILED/internal")
	renewed := a.scrape(t)[`tendril_lease_renewals_total{result="ok"}`]
	if renewed < 1 {
		t.Errorf("renewals = %v, want some", renewed)
	}
	chunks := w.number(t, "SELECT count(*) FROM public.provision_logs WHERE stream_type <> 'SYSTEM' OR log_chunk LIKE '%without a result%' OR log_chunk LIKE '%before it had a result%'")
	a.measures(t, map[string]float64{
		`tendril_slots_busy`: 0, `tendril_spool_bytes`: 0, `tendril_log_lag_seconds`: 0,
		`tendril_claims_total{operation="apply"}`: 3, `tendril_queue_wait_seconds_count`: 3, `tendril_log_chunks_total`: chunks,
		`tendril_provisions_total{code="", operation="apply", status="SUCCESS"}`:         1,
		`tendril_provisions_total{code="exec_died", operation="apply", status="FAILED"}`: 1,
		`tendril_provisions_total{code="internal", operation="apply", status="FAILED"}`:  1,
		`tendril_stage_duration_seconds_count{stage="checkout"}`:                         3, `tendril_stage_duration_seconds_count{stage="apply"}`: 1,
		`tendril_set_aside_total{kind="report"}`: 1, `tendril_set_aside_total{kind="log"}`: 0,
		`tendril_lease_renewals_total{result="lost"}`: 0, `tendril_lease_renewals_total{result="error"}`: 0, `tendril_swept_total`: 0,
	})
	if status, reason := a.reason(t, "/readyz"); status != 200 || reason != "" {
		t.Errorf("GET /readyz = %d %q, want 200", status, reason)
	}
	a.stops(t) // goroutines count
}

// number answers a query of one number.
func (w *world) number(t *testing.T, query string) float64 {
	t.Helper()
	var n float64
	if err := w.Conn.QueryRow(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// A drain is told by /readyz and by no other, and can be watched to its end.
func TestHealthWhileDraining(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.observedSetup()
	s.Slots, s.Margin = 1, calls // all are busy
	a := startAgent(t, s)
	id := w.deploy(t, "prod", "touch running", "sleep go", "succeed")
	w.touched(t, "running")
	busy := time.Now()
	// It is not healthy for a moment where the machine stands still for that long.
	patience.Await(t, "the agent to be healthy when all slots have been busy for longer than a loop may be late", func() bool {
		status, _ := a.reason(t, "/healthz")
		return time.Since(busy) > s.Margin+time.Second && status == 200
	})
	patience.Await(t, "the agent to be ready", func() bool { status, _ := a.reason(t, "/readyz"); return status == 200 })
	a.term(t)
	a.says(t, "draining")
	patience.Await(t, "the agent not to be ready", func() bool { status, _ := a.reason(t, "/readyz"); return status == 503 })
	if _, reason := a.reason(t, "/readyz"); !strings.Contains(reason, "drains") {
		t.Errorf("GET /readyz says %q, want that it drains", reason)
	}
	if status, reason := a.reason(t, "/healthz"); status != 200 {
		t.Errorf("GET /healthz = %d %q, want 200", status, reason)
	}
	a.measures(t, map[string]float64{`tendril_slots_busy`: 1})
	w.release(t, "go")
	w.becomes(t, id, "SUCCESS")
	a.exits(t, 0)
}

// What an earlier boot has left shows: swept, or delivered and counted.
func TestMetricsOfLeftovers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	id := w.deploy(t, "prod", "touch running", "hold never")
	w.touched(t, "running")
	a.kill()
	b := startAgent(t, w.observedSetup())
	w.becomes(t, id, "FAILED/agent_restarted")
	b.measures(t, map[string]float64{`tendril_swept_total`: 1, `tendril_claims_total{operation="apply"}`: 0, `tendril_slots_busy`: 0, `tendril_log_lag_seconds`: 0})
	b.stops(t)
	named := regexp.MustCompile(`(?m)msg="ended a provision that an earlier start.*" provision=1 workspace=prod claim=[0-9a-f-]{36} `)
	if !named.MatchString(b.log.String()) {
		t.Error("the log does not name the run that was ended without a result")
	}
}

// A database that is away for longer than a lease is no reason to restart an
// agent, but one for it not to be ready; what waits meanwhile is measured.
func TestHealthWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	server := pgtest.OwnServer(t)
	if _, err := tendrilsql.Migrate(t.Context(), server.URL); err != nil {
		t.Fatal(err)
	}
	w := newWorldIn(t, queuetest.Populate(t, server.URL))
	s := w.observedSetup()
	s.Margin = 20 * time.Second // the call that is cut may take as long as calls may: 5 s here
	a := startAgent(t, s)
	id := w.deploy(t, "prod", "apply", "touch running", "hold go", "print 3", "touch printed", "hold on", "succeed")
	w.touched(t, "running")
	patience.Await(t, "the agent to be ready", func() bool { status, _ := a.reason(t, "/readyz"); return status == 200 })
	w.Exec(t, "UPDATE tendril.settings SET lease = '3 seconds'") // now that losing it ends nothing
	patience.Await(t, "the lease to be as short", func() bool {
		return w.Text(t, "SELECT (lease_until < clock_timestamp() + interval '4 seconds')::text FROM tendril.claims") == "true"
	})
	stopped := time.Now()
	server.Stop(t)
	w.release(t, "go")
	w.touched(t, "printed")
	away := time.Now()
	patience.Await(t, "the agent not to be ready, for longer than a lease", func() bool {
		if status, reason := a.reason(t, "/healthz"); status != 200 {
			t.Fatalf("GET /healthz = %d %q, want 200 while the database is away", status, reason)
		}
		status, reason := a.reason(t, "/readyz")
		return status == 503 && strings.HasSuffix(reason, ": the database cannot be reached") && time.Since(away) > 6*time.Second
	})
	got := a.scrape(t)
	if lag := got["tendril_log_lag_seconds"]; lag < 4 || lag > time.Since(stopped).Seconds()+1 {
		t.Errorf("tendril_log_lag_seconds = %v, want about as long as the database is away, %s", lag, time.Since(stopped))
	}
	if got[`tendril_lease_renewals_total{result="error"}`] < 1 {
		t.Error("no renewal has failed, want some")
	}
	if _, body := a.get(t, "/readyz"); strings.Contains(body, w.Token) || strings.Contains(body, "postgres") {
		t.Errorf("GET /readyz = %q, want nothing of the database's address", body)
	}

	server.Start(t)
	conn, err := pgx.Connect(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	w.Conn = conn
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	patience.Await(t, "the agent to be ready again", func() bool { status, _ := a.reason(t, "/readyz"); return status == 200 })
	w.release(t, "on")
	w.becomes(t, id, "SUCCESS")
	a.measures(t, map[string]float64{`tendril_log_lag_seconds`: 0, `tendril_provisions_total{code="", operation="apply", status="SUCCESS"}`: 1})
	a.stops(t)
}

// Before it has registered an agent is alive, and says what it waits for.
func TestHealthBeforeRegistration(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.observedSetup()
	s.URL = "postgres://nobody@127.0.0.1:1/none"
	a := startAgent(t, s)
	const want = "it has not registered with the database yet: the database cannot be reached"
	patience.Await(t, "the agent to say what it waits for", func() bool { status, reason := a.reason(t, "/readyz"); return status == 503 && reason == want })
	if status, reason := a.reason(t, "/healthz"); status != 200 {
		t.Errorf("GET /healthz = %d %q, want 200", status, reason)
	}
	a.stops(t)
}

// A loop that does not come back is what /healthz is for.
func TestStuckLoop(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]setup{"heartbeat": {StuckBeat: true}, "poller": {StuckPoll: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s.URL, s.Token, s.DataDir, s.Margin = w.URL, w.Token, w.data, calls
			a := startAgent(t, s)
			patience.Await(t, "/healthz to say that the "+name+" has not turned, and no other", func() bool {
				status, reason := a.reason(t, "/healthz")
				return status == 503 && strings.HasPrefix(reason, name+" has not turned for ") && !strings.Contains(reason, ";")
			})
			a.kill()
		})
	}
}
