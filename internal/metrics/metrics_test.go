package metrics

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/metrictest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// full is what an agent has that has done a little of everything.
func full() *Metrics {
	m := New("v1.2.3")
	m.Watch(func() Status { return Status{Slots: 4, Busy: 1, LogLag: 1500 * time.Millisecond, SpoolBytes: 8192} })
	m.WatchData(func() map[string]int64 { return map[string]int64{"mirrors": 10, "providers": 20} })
	m.Claimed(provision.OperationApply, 3*time.Second)
	m.Claimed(provision.OperationPlan, -1)
	m.StageTook(provision.StagePlan, 2*time.Second, "")
	m.RunEnded(provision.OperationApply, provision.Success, "")
	m.RunEnded(provision.OperationApply, provision.Failed, provision.CodeApplyFailed)
	m.ChunksStored(7)
	m.LeasesRenewed(2, 1, 0)
	m.LeasesRenewed(0, 0, 3)
	m.Swept(2)
	m.Beat(time.UnixMilli(1_700_000_000_500))
	return m
}

// Dashboards and alerts are made of these names: whoever changes one changes what
// others have built.
func TestNames(t *testing.T) {
	t.Parallel()
	metrictest.Names(t, full().registry, "tendril_")
}

func TestValues(t *testing.T) {
	t.Parallel()
	m := full()
	for series, want := range map[string]float64{
		`tendril_build_info{version="v1.2.3"}`:                                            1,
		`tendril_claims_total{operation="apply"}`:                                         1,
		`tendril_claims_total{operation="destroy"}`:                                       0,
		`tendril_queue_wait_seconds_count{}`:                                              1,
		`tendril_queue_wait_seconds_sum{}`:                                                3,
		`tendril_stage_duration_seconds_sum{stage="plan"}`:                                2,
		`tendril_stage_duration_seconds_count{stage="apply"}`:                             0,
		`tendril_provisions_total{code="",operation="apply",status="SUCCESS"}`:            1,
		`tendril_provisions_total{code="apply_failed",operation="apply",status="FAILED"}`: 1,
		`tendril_log_chunks_total{}`:                                                      7,
		`tendril_lease_renewals_total{result="ok"}`:                                       2,
		`tendril_lease_renewals_total{result="lost"}`:                                     1,
		`tendril_lease_renewals_total{result="error"}`:                                    3,
		`tendril_swept_total{}`:                                                           2,
		`tendril_heartbeat_last_success_timestamp_seconds{}`:                              1_700_000_000.5,
		`tendril_slots{}`: 4, `tendril_slots_busy{}`: 1, `tendril_log_lag_seconds{}`: 1.5, `tendril_spool_bytes{}`: 8192,
		`tendril_data_bytes{kind="mirrors"}`: 10, `tendril_data_bytes{kind="providers"}`: 20,
	} {
		if got, ok := values(t, m)[series]; !ok || got != want {
			t.Errorf("%s = %v (there: %t), want %v", series, got, ok, want)
		}
	}
}

// Whatever a child or a database says, there are no more series than words that we
// know.
func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	m := New("x")
	before := len(values(t, m))
	for i := range 100 {
		word := fmt.Sprintf("acme/prod-%d", i)
		m.Claimed(provision.Operation(word), 0)
		m.RunEnded(provision.Operation(word), provision.Status(word), provision.Code(word))
		m.StageTook(provision.Stage(word), time.Second, "")
	}
	m.StageTook(provision.StageQueued, time.Second, "")
	m.StageTook(provision.StageDone, time.Second, "")
	got := values(t, m)
	if want := before + 2; len(got) != want {
		t.Errorf("there are %d series after words that nobody knows, want %d: one for all of them of each counter", len(got), want)
	}
	if got[`tendril_provisions_total{code="other",operation="other",status="other"}`] != 100 || got[`tendril_claims_total{operation="other"}`] != 100 {
		t.Errorf("what nobody knows is not counted as other: %v", got)
	}
}

func TestHandlerSpeaksPrometheus(t *testing.T) {
	t.Parallel()
	got := httptest.NewRecorder()
	full().Handler(slog.New(slog.DiscardHandler)).ServeHTTP(got, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{"# TYPE tendril_queue_wait_seconds histogram\n", "tendril_slots_busy 1\n", "go_goroutines ", "process_resident_memory_bytes "} {
		if got.Code != 200 || !strings.Contains(got.Body.String(), want) {
			t.Errorf("GET /metrics = %d, want 200 with %q:\n%s", got.Code, want, got.Body)
		}
	}
}

// values are all of ours, by name and labels; a histogram's sum and count stand
// for its buckets.
func values(t *testing.T, m *Metrics) map[string]float64 {
	t.Helper()
	return metrictest.Values(t, m.registry, "tendril_")
}

// The path of log chunks and heartbeats: what it costs to be counted.
func BenchmarkChunksStored(b *testing.B) {
	m := New("x")
	b.ReportAllocs()
	for b.Loop() {
		m.ChunksStored(1)
	}
}

// A scraper that asks for OpenMetrics sees the trace of a slow stage.
func TestExemplars(t *testing.T) {
	t.Parallel()
	m := New("v1")
	m.StageTook(provision.StageApply, time.Second, "0af7651916cd43dd8448eb211c80319c")
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	answer := httptest.NewRecorder()
	m.Handler(slog.New(slog.DiscardHandler)).ServeHTTP(answer, r)
	if want := `# {trace_id="0af7651916cd43dd8448eb211c80319c"} 1.0`; !strings.Contains(answer.Body.String(), want) {
		t.Errorf("/metrics = %s\nwant %s in it", answer.Body, want)
	}
}
