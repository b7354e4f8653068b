package agentcmd

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/queue/rpcwire"
	"github.com/tendril-run/tendril/internal/testkit/gatewaytest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// joins starts to join by a gateway; each code comes by the channel.
func joins(t *testing.T, w *queuetest.World) (*joiner, chan rpcwire.JoinStanding) {
	t.Helper()
	gateway := gatewaytest.ServeForKeys(t, w)
	settings := config.Default()
	settings.Name, settings.DataDir = "one", filepath.Join(t.TempDir(), "data")
	settings.Queue.URL, settings.Queue.APIKey, settings.Queue.CAFile = gateway.URL, gateway.APIKey, gateway.CAFile
	codes := make(chan rpcwire.JoinStanding, 1)
	return &joiner{settings: settings, waits: func(s rpcwire.JoinStanding, _ agentkey.Key) { codes <- s }}, codes
}

func TestJoinByCode(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	j, codes := joins(t, w)
	ended := make(chan error, 1)
	go func() { ended <- j.join(t.Context()) }()
	var shown rpcwire.JoinStanding
	select {
	case shown = <-codes:
	case err := <-ended:
		t.Fatalf("join() = %v before anybody has approved", err)
	}
	key, err := agentkey.Load(j.settings.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	w.Exec(t, "SELECT public.approve_join($1, $2, $3)", shown.Code, w.Cluster, key.Fingerprint())
	select {
	case err = <-ended:
	case <-patience.After(time.Minute):
		t.Fatal("join() does not return after the yes")
	}
	if err != nil {
		t.Fatal(err)
	}
	// The next start needs neither a URL nor a token, and has the key.
	loaded, err := config.Load("", []string{"HOME=" + t.TempDir(), "TENDRIL_NAME=one", "TENDRIL_DATA_DIR=" + j.settings.DataDir})
	if err != nil || loaded.Queue.URL != j.settings.Queue.URL || loaded.Queue.Key == nil || loaded.Queue.Key.Fingerprint() != key.Fingerprint() {
		t.Errorf("Load() after joining = %+v, %v, want the URL and the key", loaded.Queue, err)
	}

	// A revoked key is replaced.
	w.Exec(t, "UPDATE tendril.agent_keys SET revoked_at = now()")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { ended <- j.join(ctx) }()
	<-codes
	if again, err := agentkey.Load(j.settings.DataDir); err != nil || again.Fingerprint() == key.Fingerprint() {
		t.Errorf("the key after its revocation = %v, want another one", err)
	}
	stop()
	if err := <-ended; err == nil {
		t.Error("join() that was stopped = nil, want an error")
	}
}

func TestJoinByToken(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	j, _ := joins(t, w)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(w.Text(t, "SELECT token FROM public.create_join_token($1)", w.Cluster)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if j.settings.Queue.JoinToken, err = joinToken(file); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a restart before it was remembered
		if err := j.join(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	j.settings.DataDir = filepath.Join(t.TempDir(), "other")
	if err := j.join(t.Context()); err == nil {
		t.Error("join() of another agent with the token = nil, want a refusal")
	}
}
