package pgtest

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/postgres"
)

// Own is a server that belongs to one test, which may stop and start it.
type Own struct {
	// URL connects as superuser to the database "postgres". It stays the same
	// across restarts and holds the password.
	URL string

	options postgres.Options
	mu      sync.Mutex
	server  *postgres.Server
}

// OwnServer starts a server for this test alone, empty and as durable as
// shared ones, that is: not across a crash of the machine. It is stopped when
// the test is over.
func OwnServer(t testing.TB) *Own {
	t.Helper()
	o := &Own{options: postgres.Options{DataDir: Dir(t), BinDir: os.Getenv(binEnv), Settings: fast()}}
	t.Cleanup(func() { o.Stop(t) })
	o.Start(t)
	return o
}

// Server returns the running server.
func (o *Own) Server() *postgres.Server {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.server
}

// Start starts the server again after Stop, with what it held.
func (o *Own) Start(t testing.TB) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.server != nil {
		t.Fatal("pgtest: Start of a server that runs")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	server, err := postgres.Start(ctx, o.options)
	if err != nil {
		t.Fatalf("pgtest: starting a server: %v", err)
	}
	o.server, o.URL = server, server.URL("postgres")
}

// Stop stops the server, cutting its sessions, and waits for it. Stopping a
// stopped one does nothing.
func (o *Own) Stop(t testing.TB) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.server == nil {
		return
	}
	// Not t.Context(): this runs in clean-ups too.
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := o.server.Stop(ctx); err != nil {
		t.Errorf("pgtest: stopping a server: %v", err)
	}
	o.server = nil
}
