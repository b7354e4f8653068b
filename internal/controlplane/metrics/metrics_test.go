package metrics

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/tendril-run/tendril/internal/testkit/metrictest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const answered = `{"contract": 4, "migration": 28, "omitted": 3, "overdue_leases": 1, "statuses": {"QUEUED": 3, "PROCESSING": 1, "AWAITING_APPROVAL": 0},
	"webhooks": {"waiting": 2, "overdue": 60.5}, "database_bytes": 9000000, "log_bytes": 8192,
	"clusters": [{"id": "c1", "paused": true, "queued": 3, "runnable": 1, "running": 1, "oldest": 7200.5, "oldest_runnable": 60, "online": 1, "stale": 0, "offline": 2, "slots": 4, "usage": {"blobs": 0.75, "agents": 0.001}},
		{"id": "c2", "paused": false, "queued": 0, "runnable": 0, "running": 0, "oldest": null, "oldest_runnable": null, "online": 0, "stale": 1, "offline": 0, "slots": 0}]}`

// full is what a process has that has done a little of everything.
func full(t *testing.T) *Metrics {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	m := New("v1.2.3")
	m.Duties(Reap, "drift")
	m.Duty(Reap, 2, nil)
	m.Duty("drift", 5, nil)
	m.Duty("drift", 0, errors.New("away"))
	m.Request("/api/v1/provisions/{id}", "GET", 200, time.Second, false, "")
	m.Request("/live", "GET", 200, time.Hour, true, "")
	m.Call("agent_heartbeat", 200, time.Millisecond)
	m.Delivery(true, false)
	m.Watch(func() Live { return Live{Viewers: 2, Listening: true, Sessions: 3} }, func() Held { return Held{Calls: 4, Limit: 5, Woken: map[string]uint64{"notified": 6}, Listening: true} }, map[string]func() *pgxpool.Stat{"people": pool.Stat})
	m.WatchDatabase(func(context.Context, int) ([]byte, error) { return []byte(answered), nil })
	return m
}

// Dashboards and alerts are made of these names: whoever changes one changes what
// others have built.
func TestNames(t *testing.T) {
	t.Parallel()
	metrictest.Names(t, full(t).registry, "trellis_")
}

func TestValues(t *testing.T) {
	t.Parallel()
	got := values(t, full(t))
	for series, want := range map[string]float64{
		`trellis_build_info{version="v1.2.3"}`: 1, `trellis_reaped_total{}`: 2,
		`trellis_duty_items_total{duty="drift"}`: 5, `trellis_duty_failures_total{duty="drift"}`: 1, `trellis_duty_failures_total{duty="reap"}`: 0,
		`trellis_http_requests_total{code="2xx",method="GET",route="/api/v1/provisions/{id}"}`: 1,
		`trellis_http_requests_total{code="2xx",method="GET",route="/live"}`:                   1,
		`trellis_http_request_duration_seconds_sum{route="/api/v1/provisions/{id}"}`:           1,
		`trellis_rpc_calls_total{function="agent_heartbeat",result="ok"}`:                      1,
		`trellis_webhook_deliveries_total{result="delivered"}`:                                 1, `trellis_webhook_deliveries_total{result="given_up"}`: 0,
		`trellis_viewers{}`: 2, `trellis_live_listening{}`: 1, `trellis_live_reconnects_total{}`: 2,
		`trellis_held_calls{}`: 4, `trellis_held_calls_max{}`: 5, `trellis_held_calls_listening{}`: 1, `trellis_held_calls_woken_total{reason="notified"}`: 6,
		`trellis_database_connections_max{pool="people"}`: 4, `trellis_database_connections{pool="people",state="used"}`: 0,
		`trellis_usage_ratio{bound="blobs",cluster_id="c1"}`: 0.75, `trellis_usage_ratio{bound="agents",cluster_id="c1"}`: 0.001,
		`trellis_database_up{}`: 1, `trellis_statistics_up{}`: 1, `trellis_contract_version{}`: 4, `trellis_migration_version{}`: 28,
		`trellis_queue_depth{cluster_id="c1"}`: 3, `trellis_queue_depth{cluster_id="c2"}`: 0, `trellis_queue_runnable{cluster_id="c1"}`: 1,
		`trellis_oldest_waiting_seconds{cluster_id="c1"}`: 7200.5, `trellis_oldest_waiting_seconds{cluster_id="c2"}`: 0, `trellis_oldest_runnable_seconds{cluster_id="c1"}`: 60,
		`trellis_agents{cluster_id="c1",state="offline"}`: 2, `trellis_agents{cluster_id="c2",state="online"}`: 0, `trellis_agents{cluster_id="c2",state="stale"}`: 1,
		`trellis_slots{cluster_id="c1"}`: 4, `trellis_running_claims{cluster_id="c1"}`: 1, `trellis_cluster_paused{cluster_id="c1"}`: 1, `trellis_cluster_paused{cluster_id="c2"}`: 0,
		`trellis_clusters_omitted{}`: 3, `trellis_provisions{status="AWAITING_APPROVAL"}`: 0, `trellis_provisions{status="QUEUED"}`: 3, `trellis_leases_overdue{}`: 1,
		`trellis_webhook_deliveries_waiting{}`: 2, `trellis_webhook_overdue_seconds{}`: 60.5, `trellis_database_size_bytes{}`: 9e6, `trellis_log_size_bytes{}`: 8192,
	} {
		if value, ok := got[series]; !ok || value != want {
			t.Errorf("%s = %v (there: %t), want %v", series, value, ok, want)
		}
	}
	if _, measured := got[`trellis_http_request_duration_seconds_sum{route="/live"}`]; measured {
		t.Error("a stream of an hour is among the durations")
	}
}

// What clients send makes no series of its own.
func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	m := New("x")
	before := len(values(t, m))
	for i := range 100 {
		m.Request("", fmt.Sprint("METHOD", i), 404, time.Second, false, "")
		m.Call("", 400+i, time.Second)
	}
	if got, want := len(values(t, m))-before, 2*2+3; got != want {
		t.Errorf("there are %d more series, want %d: two of each histogram, and the results", got, want)
	}
}

func values(t *testing.T, m *Metrics) map[string]float64 {
	t.Helper()
	return metrictest.Values(t, m.registry, "trellis_")
}

// However many scrape at once and how often, the database is asked once in a while,
// and a failure is not asked for again at once either.
func TestTheDatabaseIsAskedRarely(t *testing.T) { synctest.Test(t, testTheDatabaseIsAskedRarely) }

func testTheDatabaseIsAskedRarely(t *testing.T) {
	for name, fails := range map[string]error{"answers": nil, "away": errors.New("away")} {
		asked := 0 // under the lock of answers
		m := New("x")
		m.WatchDatabase(func(_ context.Context, clusters int) ([]byte, error) {
			if asked++; clusters != Clusters {
				t.Errorf("asked for %d clusters", clusters)
			}
			return []byte(answered), fails
		})
		var scrapers sync.WaitGroup
		for range 30 {
			scrapers.Go(func() {
				got := values(t, m)
				if up := got["trellis_database_up{}"]; (up == 1) != (fails == nil) {
					t.Errorf("%s: trellis_database_up = %v", name, up)
				}
			})
		}
		scrapers.Wait()
		if asked != 1 {
			t.Errorf("%s: the database was asked %d times by 30 scrapes, want once", name, asked)
		}
	}
}

// An answer that took long is given for long, and one that comes to an end is asked
// for again.
func TestAnswersEnd(t *testing.T) { synctest.Test(t, testAnswersEnd) }

func testAnswersEnd(t *testing.T) {
	asked, err := 0, error(nil)
	a := &answers{ask: func(ctx context.Context, _ int) ([]byte, error) {
		asked++
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > askLimit {
			t.Error("the question has no limit")
		}
		return []byte(answered), err
	}}
	a.get()
	<-time.After(time.Until(a.until))
	err = errors.New("away")
	if now, up := a.get(); asked != 2 || now != nil || up {
		t.Errorf("after its end: asked %d times, %v, up %t, want an old answer forgotten", asked, now, up)
	}
	slow := &answers{ask: func(ctx context.Context, _ int) ([]byte, error) {
		wait, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		<-wait.Done()
		return []byte(answered), nil
	}}
	if slow.get(); time.Until(slow.until) != time.Second {
		t.Errorf("an answer that took 20 ms is given for %s, want a second", time.Until(slow.until))
	}
}

// A database that refuses is there; its numbers are not.
func TestWhatIsNotKnownIsLeftOut(t *testing.T) {
	t.Parallel()
	for err, up := range map[error]float64{
		errors.New("dial: refused"):                                 0,
		&pgconn.PgError{Code: "57P03", Message: "starting up"}:      0,
		&pgconn.PgError{Code: "42883", Message: "no such function"}: 1,
		fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: "55P03"}):   1,
		context.DeadlineExceeded:                                    0,
		fmt.Errorf("not JSON"):                                      0,
	} {
		m := New("x")
		m.WatchDatabase(func(context.Context, int) ([]byte, error) { return nil, err })
		got := values(t, m)
		if got["trellis_database_up{}"] != up || got["trellis_statistics_up{}"] != 0 {
			t.Errorf("%v: up %v, statistics %v, want %v, 0", err, got["trellis_database_up{}"], got["trellis_statistics_up{}"], up)
		}
		for series := range got {
			if strings.HasPrefix(series, "trellis_queue") || strings.HasPrefix(series, "trellis_agents") || strings.HasPrefix(series, "trellis_contract") {
				t.Errorf("%v: %s is told all the same", err, series)
			}
		}
	}
}

func TestHandlerSpeaksPrometheus(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	got := httptest.NewRecorder()
	full(t).Handler(slog.New(slog.NewTextHandler(&said, nil))).ServeHTTP(got, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{"# TYPE trellis_http_request_duration_seconds histogram\n", "trellis_viewers 2\n", "go_goroutines ", "process_resident_memory_bytes "} {
		if got.Code != http.StatusOK || !strings.Contains(got.Body.String(), want) {
			t.Errorf("GET /metrics = %d, want 200 with %q:\n%s", got.Code, want, got.Body)
		}
	}
	if said.Len() > 0 {
		t.Errorf("the log says %s, want nothing", &said)
	}
}
