package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/postgres"
	"github.com/tendril-run/tendril/internal/testkit/patience"
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

// OwnOption says how a server is to run.
type OwnOption func(*postgres.Options)

// Durable has the server keep what was committed, however it is stopped; not
// across a crash of the machine.
func Durable() OwnOption {
	return func(o *postgres.Options) { o.Settings["synchronous_commit"] = "on" }
}

// AsInstalled has the server run with the settings that PostgreSQL comes with,
// for benchmarks: every commit is on the disk before it is answered.
func AsInstalled() OwnOption {
	return func(o *postgres.Options) { o.Settings = map[string]string{"max_connections": "400"} }
}

// WithSetting has the server run with a parameter of the test's.
func WithSetting(name, value string) OwnOption {
	return func(o *postgres.Options) { o.Settings[name] = value }
}

// WithPrograms runs the server by the programs in a directory.
func WithPrograms(dir string) OwnOption {
	return func(o *postgres.Options) { o.BinDir = dir }
}

// In has the server keep its data in a directory of the test's.
func In(dir string) OwnOption {
	return func(o *postgres.Options) { o.DataDir = dir }
}

// OwnServer starts a server for this test alone, empty and no more durable than
// shared ones unless it is asked to be. It is stopped when the test is over.
func OwnServer(t testing.TB, opts ...OwnOption) *Own {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: no further server is started")
	}
	o := &Own{options: postgres.Options{BinDir: os.Getenv(binEnv), Settings: fast()}}
	for _, opt := range opts {
		opt(&o.options)
	}
	if o.options.DataDir == "" {
		o.options.DataDir = removed(t, func() (string, error) { return makeDataDir(o.options.Settings) })
	}
	if err := copyNew(o.options); err != nil {
		t.Fatalf("pgtest: copying the data of a new server: %v", err)
	}
	t.Cleanup(func() { o.Stop(t) })
	o.Start(t)
	return o
}

// copyNew makes the data of a new server as a copy of another's, where there is one:
// initdb takes longer than all else of a start. It does so only for servers that promise no
// durability, since nothing is synced, and are of the same programs.
func copyNew(o postgres.Options) error {
	file := os.Getenv(addressEnv)
	if file == "" || o.BinDir != os.Getenv(binEnv) || o.Settings["fsync"] != "off" {
		return nil
	}
	if _, err := os.Lstat(o.DataDir); errors.Is(err, fs.ErrNotExist) {
		return nil // a directory of the test's, which the server makes itself
	}
	if _, err := os.Lstat(filepath.Join(o.DataDir, "data")); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	served, err := readServed(file)
	if err != nil {
		return err
	}
	// With the owner of the data, which is another account's where the tests run as root.
	out, err := exec.Command("cp", "-a", filepath.Join(served.initial, "password"), filepath.Join(served.initial, "data"), o.DataDir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cp: %w: %s", err, out)
	}
	return nil
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
	ctx, cancel := patience.Context(t.Context(), 2*time.Minute)
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
	ctx, cancel := patience.Context(context.Background(), 30*time.Second)
	defer cancel()
	if err := o.server.Stop(ctx); err != nil {
		t.Errorf("pgtest: stopping a server: %v", err)
	}
	o.server = nil
}

// Crash stops the server as pg_ctl -m immediate does: it writes nothing more,
// and recovers when it is started again.
func (o *Own) Crash(t testing.TB) {
	t.Helper()
	o.mu.Lock()
	server := o.server
	o.mu.Unlock()
	if server == nil {
		t.Fatal("pgtest: Crash of a server that does not run")
	}
	if err := syscall.Kill(o.postmaster(t), syscall.SIGQUIT); err != nil {
		t.Fatalf("pgtest: stopping a server at once: %v", err)
	}
	select {
	case <-server.Done():
	case <-patience.After(30 * time.Second):
		t.Fatal("pgtest: a server does not end on SIGQUIT")
	}
	o.Stop(t)
}

// DataDir is where PostgreSQL keeps its files, for tests that copy them while the server
// is stopped.
func (o *Own) DataDir() string { return filepath.Join(o.options.DataDir, "data") }

// postmaster is the server's process.
func (o *Own) postmaster(t testing.TB) (pid int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(o.DataDir(), "postmaster.pid"))
	if err == nil {
		first, _, _ := strings.Cut(string(text), "\n")
		pid, err = strconv.Atoi(first)
	}
	if err != nil {
		t.Fatalf("pgtest: finding the server's process: %v", err)
	}
	return pid
}
