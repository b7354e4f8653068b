package rpcgateway_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/postgrest"
	"github.com/tendril-run/tendril/internal/testkit/outputtest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// Whoever is refused again and again does not fill the log, nor hide from it
// what goes wrong here.
func TestRefusalsDoNotFloodTheLog(t *testing.T) {
	t.Parallel()
	log := &outputtest.Buffer{}
	gateway, err := rpcgateway.New(t.Context(), rpcgateway.Options{
		DatabaseURL: "postgres://nobody@127.0.0.1:1/none", Rate: -1, Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gateway.Close)
	call := func(function string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, postgrest.RPCPath(function), strings.NewReader("{}"))
		gateway.ServeHTTP(httptest.NewRecorder(), r)
	}
	for range 2000 {
		call("no_such_function")
	}
	if n := strings.Count(log.String(), "status=404"); n < 10 || n > 500 {
		t.Errorf("2000 refused calls made %d lines, want some", n)
	}
	call("agent_heartbeat")
	if !strings.Contains(log.String(), "status=503") {
		t.Errorf("the log does not tell that the database is away:\n%s", log)
	}
	patience.Await(t, "a line that counts what was left out", func() bool {
		call("no_such_function")
		return strings.Contains(log.String(), "left_out=")
	})
}
