package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/agentkey"
)

// A service account's token is read at each start, also where a key has joined: it may be that of a
// pod before this one.
func TestServiceAccountToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "account")
	load := func(token string, more ...string) (Config, error) {
		t.Helper()
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		return Load("", append([]string{"HOME=" + dir, "TENDRIL_DATA_DIR=" + dir, "TENDRIL_QUEUE_URL=https://t.example", "TENDRIL_QUEUE_JOIN_SERVICE_ACCOUNT_TOKEN_FILE=" + file}, more...))
	}
	c, err := load("a.b.c\n")
	if err != nil || !c.Queue.MustJoin() || c.Queue.AccountToken.Reveal() != "a.b.c" || c.Queue.Key != nil {
		t.Errorf("Load() = %+v, %v, want the token, and no key yet", c.Queue, err)
	}
	if _, err := agentkey.Create(dir); err != nil {
		t.Fatal(err)
	}
	if err := (Joined{URL: "https://t.example", ClusterID: uuid.New(), ClusterName: "prod"}).Remember(dir); err != nil {
		t.Fatal(err)
	}
	if c, err = load("d.e.f"); err != nil || !c.Queue.MustJoin() || c.Queue.AccountToken.Reveal() != "d.e.f" || c.Queue.Key == nil {
		t.Errorf("Load() with a key = %+v, %v, want the newest token and the key", c.Queue, err)
	}
	for says, tried := range map[string]func() (Config, error){
		"holds no token of a service account":     func() (Config, error) { return load("tnd_hunter2") },
		"and a join token are both set":           func() (Config, error) { return load("a.b.c", "TENDRIL_JOIN_TOKEN=tnj_hunter2") },
		"join_service_account_token_file = \"/no": func() (Config, error) { return load("a.b.c", "TENDRIL_QUEUE_JOIN_SERVICE_ACCOUNT_TOKEN_FILE=/none") },
	} {
		if _, err := tried(); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Load() = %v, want %q, without the token", err, says)
		}
	}
}
