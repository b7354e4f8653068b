// Package gatewaytest serves a test's database to agents over HTTPS: the real
// gateway, under a certificate that only a file of the test's vouches for.
//
// It must not know what is asked of it.
package gatewaytest

import (
	"encoding/pem"
	"io"
	"log"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// Gateway is one that serves.
type Gateway struct {
	URL string // https://…
	// Address is its host and port.
	Address string
	// CAFile vouches for its certificate, which is also for example.com.
	CAFile string
	// APIKey is what it asks for.
	APIKey string
}

// Serve serves a world's database until the test is over. It connects by a login
// that may act as anon and as nobody else.
func Serve(t testing.TB, w *queuetest.World) Gateway {
	t.Helper()
	const apiKey = "sb_publishable_test"
	gateway, err := rpcgateway.New(t.Context(), rpcgateway.Options{
		DatabaseURL: w.Login(t, "anon"), APIKey: apiKey, Rate: -1, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatalf("gatewaytest: %v", err)
	}
	server := httptest.NewUnstartedServer(gateway)
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that are given up
	server.StartTLS()
	t.Cleanup(func() {
		server.Close()
		gateway.Close()
	})
	file := filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(file, block, 0o644); err != nil { // also for agents of another uid
		t.Fatalf("gatewaytest: %v", err)
	}
	return Gateway{URL: server.URL, Address: server.Listener.Addr().String(), CAFile: file, APIKey: apiKey}
}
