package serve

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/metrics"
)

// A loop that turns no more is what a restart is for; one that is slow is not.
func TestHealthzFailsWhereALoopIsStuck(t *testing.T) {
	t.Parallel()
	for since, want := range map[time.Duration]int{0: http.StatusOK, stuckAfter - 10*time.Second: http.StatusOK, stuckAfter + time.Second: http.StatusServiceUnavailable} {
		m := &monitor{metrics: metrics.New("x"), log: slog.New(slog.DiscardHandler), version: "x", loops: []loop{
			{"keeper", time.Now}, {"live", func() time.Time { return time.Now().Add(-since) }},
		}}
		got := httptest.NewRecorder()
		m.handler().ServeHTTP(got, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		if got.Code != want || !strings.Contains(got.Body.String(), `"live":`) || strings.Contains(got.Body.String(), "stuck") != (want != http.StatusOK) {
			t.Errorf("%s after its last turn: /healthz = %d %s, want %d", since, got.Code, got.Body, want)
		}
	}
}
