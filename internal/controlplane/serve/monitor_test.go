package serve_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/serve"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// watch is start with a port for metrics; it returns both URLs.
func watch(t *testing.T, o serve.Options) (public, monitor string) {
	t.Helper()
	o.MetricsListen = "127.0.0.1:0"
	monitors := make(chan string, 1)
	o.Monitoring = func(url string) { monitors <- url }
	public = start(t, o)
	return public, <-monitors
}

func TestMonitorsOnAPortOfItsOwn(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, queuetest.Migrated)
	o, _ := options(db.URL)
	public, monitor := watch(t, o)
	client := &http.Client{Transport: &http.Transport{}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for path, want := range map[string]string{
		"/healthz":                     `200 {"status":"ok","version":"test","loops":{"keeper":`,
		"/readyz":                      `200 {"status":"ok","version":"test","database":{"ok":true,"contract":`,
		"/metrics":                     "200 # HELP ",
		"/":                            "404 ",
		"/rest/v1/rpc/agent_heartbeat": "404 ",
		"/debug/pprof/":                "404 ",
	} {
		status, body := get(t, client, monitor+path)
		if !strings.HasPrefix(fmt.Sprintf("%d %s", status, body), want) {
			t.Errorf("GET %s = %d %s, want %s", path, status, body, want)
		}
		if status, _ := post(t, monitor+path, "{}"); status == http.StatusOK {
			t.Errorf("POST %s = 200, want it refused", path)
		}
	}
	for _, path := range []string{"/metrics", "/readyz", "//metrics", "/%6detrics"} {
		if status, body := get(t, client, public+path); status == http.StatusOK && !strings.HasPrefix(body, "<!doctype html>") || strings.Contains(body, "trellis_") {
			t.Errorf("GET %s of the public port = %d %.100s, want nothing of it there", path, status, body)
		}
	}
	if _, body := get(t, client, monitor+"/metrics"); !strings.Contains(body, `trellis_build_info{version="test"} 1`) {
		t.Errorf("/metrics = %s, want the version", body)
	}
}

func TestMetricsPortThatIsTaken(t *testing.T) {
	t.Parallel()
	var listen net.ListenConfig
	taken, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	o, _ := options("postgres://nobody@127.0.0.1:1/none")
	o.MetricsListen = taken.Addr().String()
	if err := serve.Run(context.WithoutCancel(t.Context()), o); err == nil || !strings.Contains(err.Error(), "choose another address with --metrics-listen") {
		t.Errorf("Run(taken port for metrics) = %v, want it to say so", err)
	}
}

// Nothing of a database whose contract is too old is served: /readyz says so, and
// that the process lives.
func TestNotReadyWhereTheContractIsOlder(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, queuetest.Migrated)
	o, said := options(db.URL)
	_, monitor := watch(t, o)
	if _, err := db.Conn(t).Exec(t.Context(), "CREATE OR REPLACE FUNCTION tendril.contract_version() RETURNS int LANGUAGE sql AS 'SELECT 1'"); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{}}
	patience.AwaitShowing(t, "what the test wants", said.String, func() bool {
		status, body := get(t, client, monitor+"/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, `"status":"unavailable","version":"test","database":{"ok":true,"contract":1}`)
	})
	if status, body := get(t, client, monitor+"/healthz"); status != http.StatusOK {
		t.Errorf("GET /healthz = %d %s, want 200", status, body)
	}
}
