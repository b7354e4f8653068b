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
	// Served is the gateway itself.
	Served *rpcgateway.Gateway
}

// Handler is the gateway to a world's database, until the test is over. It connects by a login
// that may act as anon and as nobody else.
func Handler(t testing.TB, w *queuetest.World, apiKey string) *rpcgateway.Gateway {
	t.Helper()
	return open(t, w.Login(t, "anon"), apiKey)
}

// HandlerForKeys is Handler for agents that sign their requests: its login may act as the
// contract's owner, which the database believes which key has signed.
func HandlerForKeys(t testing.TB, w *queuetest.World, apiKey string) *rpcgateway.Gateway {
	t.Helper()
	return open(t, w.URL, apiKey)
}

func open(t testing.TB, databaseURL, apiKey string) *rpcgateway.Gateway {
	t.Helper()
	gateway, err := rpcgateway.New(t.Context(), rpcgateway.Options{
		DatabaseURL: databaseURL, APIKey: apiKey, Rate: -1, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatalf("gatewaytest: %v", err)
	}
	t.Cleanup(gateway.Close)
	return gateway
}

const apiKey = "sb_publishable_test"

// Serve serves what Handler is.
func Serve(t testing.TB, w *queuetest.World) Gateway {
	t.Helper()
	return serve(t, Handler(t, w, apiKey))
}

// ServeForKeys serves what HandlerForKeys is.
func ServeForKeys(t testing.TB, w *queuetest.World) Gateway {
	t.Helper()
	return serve(t, HandlerForKeys(t, w, apiKey))
}

func serve(t testing.TB, gateway *rpcgateway.Gateway) Gateway {
	t.Helper()
	server := httptest.NewUnstartedServer(gateway)
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that are given up
	server.StartTLS()
	t.Cleanup(func() {
		gateway.EndHeld() // the server waits for them
		server.Close()
	})
	return Gateway{URL: server.URL, Address: server.Listener.Addr().String(), CAFile: CAFile(t, server.Certificate().Raw), APIKey: apiKey, Served: gateway}
}

// CAFile writes a certificate to a file of the test's.
func CAFile(t testing.TB, certificate []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	if err := os.WriteFile(file, block, 0o644); err != nil { // also for agents of another uid
		t.Fatalf("gatewaytest: %v", err)
	}
	return file
}
