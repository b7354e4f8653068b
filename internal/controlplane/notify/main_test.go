package notify

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// got is one message as a receiver gets it.
type got struct {
	header http.Header
	body   []byte
}

// receiver is a real one, which answers as the test says.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	got    []got
	answer func(attempt int, w http.ResponseWriter)
}

func newReceiver(t *testing.T, answer func(int, http.ResponseWriter)) *receiver {
	t.Helper()
	r := &receiver{answer: answer}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		r.mu.Lock()
		r.got = append(r.got, got{q.Header, body})
		n := len(r.got)
		r.mu.Unlock()
		if r.answer != nil {
			r.answer(n, w)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) messages() []got {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

// world is a database with an admin, and a key.
type world struct {
	*queuetest.World
	database *store.Database
	admin    *store.Store
	key      *Key
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{World: queuetest.NewWorld(t)}
	user := uuid.New()
	w.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'admin')", w.Org, user)
	var err error
	if w.database, err = store.Connect(t.Context(), w.URL, 8); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.database.Close)
	w.admin = w.database.As(user)
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, NewKey(), 0o600); err != nil {
		t.Fatal(err)
	}
	if w.key, err = ReadKey(file); err != nil {
		t.Fatal(err)
	}
	return w
}

// notifier runs one in a hurry until the test is over.
func (w *world) notifier(t *testing.T, change ...func(*Notifier)) *Notifier {
	t.Helper()
	n := New(w.database, Options{Key: w.key, Allowed: Local, PublicURL: "https://console.example", Log: slog.New(slog.DiscardHandler)})
	n.lookEvery = 20 * time.Millisecond
	n.waits = []time.Duration{time.Millisecond, time.Millisecond, time.Millisecond}
	for _, c := range change {
		c(n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return n
}

func (w *world) webhook(t *testing.T, n *Notifier, kind, url string, change ...func(*store.WebhookSettings)) (uuid.UUID, string) {
	t.Helper()
	name := kind + uuid.NewString()[:8]
	s := store.WebhookSettings{Name: &name, Kind: kind, Events: []string{"awaiting_approval", "success", "failure", "cancelled", "drift"}}
	for _, c := range change {
		c(&s)
	}
	id, secret, err := n.Create(t.Context(), w.admin, w.Org, url, s)
	if err != nil {
		t.Fatalf("Create() = %v, want nil", err)
	}
	return id, secret
}

// provision makes one in a workspace and ends it.
func (w *world) provision(t *testing.T, workspace, status, code, message string) (id uuid.UUID) {
	t.Helper()
	snapshot, _ := json.Marshal(map[string]any{"template_source": map[string]any{"repo": "https://git.example/a/b", "version": "v1"}, "workspace": workspace, "terraform_vars": map[string]any{"password": "hunter2"}})
	if err := w.Conn.QueryRow(t.Context(), "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2) RETURNING id", w.Cluster, snapshot).Scan(&id); err != nil {
		t.Fatal(err)
	}
	w.Exec(t, "UPDATE public.provisions SET status = 'PROCESSING', outputs = '{\"password\": {\"value\": \"hunter2\"}}' WHERE id = $1", id)
	w.Exec(t, "SELECT tendril.end_provision($1, $2, nullif($3, ''), nullif($4, ''))", id, status, code, message)
	return id
}

func (w *world) deliveries(t *testing.T, webhook uuid.UUID) []store.Delivery {
	t.Helper()
	all, err := w.admin.Deliveries(t.Context(), webhook, nil, 100)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// verify is what a receiver does, from the specification's words and not from ours.
func verify(secret string, g got) bool {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		return false
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(g.header.Get("webhook-id") + "." + g.header.Get("webhook-timestamp") + "." + string(g.body)))
	return g.header.Get("webhook-signature") == "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
