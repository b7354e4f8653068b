package rpcgateway_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/testkit/pgtest/pgbouncer"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// A pooler lends each transaction another connection, which knows none of the
// statements that the one before had prepared, or all of them.
func TestGatewayThroughAPooler(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	pooler := pgbouncer.Start(t, w.URL, map[string]string{"default_pool_size": "2"})
	for range 3 { // as it starts
		if version, err := rpcgateway.Prepare(t.Context(), pooler.URL(t, w.URL), 1); err != nil || version == 0 {
			t.Fatalf("Prepare() = %d, %v, want the version", version, err)
		}
	}
	gateway, err := rpcgateway.New(t.Context(), rpcgateway.Options{
		DatabaseURL: pooler.URL(t, w.Login(t, "anon")), Rate: -1, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gateway.Close)
	server := httptest.NewServer(gateway)
	t.Cleanup(server.Close)
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for range 20 {
				res, err := http.Post(server.URL+"/rest/v1/rpc/check_agent", "application/json", strings.NewReader(`{"p_token_hash": "x"}`))
				if err != nil {
					t.Error(err)
					return
				}
				body, _ := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if res.StatusCode != http.StatusUnauthorized || !strings.Contains(string(body), "PT401") {
					t.Errorf("check_agent(unknown token) through a pooler = %s %s, want 401 and PT401", res.Status, body)
					return
				}
			}
		})
	}
	clients.Wait()
}
