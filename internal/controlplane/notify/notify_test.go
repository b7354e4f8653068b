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
	"github.com/tendril-run/tendril/internal/pgtest"
	"github.com/tendril-run/tendril/internal/queue/queuetest"
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

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for over := time.After(20 * time.Second); ; {
		if condition() {
			return
		}
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("%s: not within 20 s", what)
		}
	}
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

// What happens is told once to each who wants it, signed, however many processes
// there are, and with nothing in it that is secret.
func TestMessagesArriveOnceAndSigned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.notifier(t)
	for range 2 {
		w.notifier(t)
	}
	all, slackish, other := newReceiver(t, nil), newReceiver(t, nil), newReceiver(t, nil)
	webhook, secret := w.webhook(t, n, "generic", all.URL+"/hook?token=s3cret")
	w.webhook(t, n, "slack", slackish.URL)
	pattern := "pro*"
	w.webhook(t, n, "generic", other.URL, func(s *store.WebhookSettings) { s.Workspace, s.Events = &pattern, []string{"success"} })

	const each = 10
	for range each {
		w.provision(t, "prod_eu", "SUCCESS", "", "")
	}
	failed := w.provision(t, "x", "FAILED", "plan_failed", "<!channel> & *all*: it broke")
	w.provision(t, "xprod", "SUCCESS", "", "")
	w.Exec(t, "UPDATE public.workspaces SET drift = '[{}]', drift_count = 3, drift_at = now() WHERE name = 'x'")
	w.Exec(t, "UPDATE public.workspaces SET drift = '[{}]', drift_count = 3, drift_at = now() + interval '1 s' WHERE name = 'x'") // the same again

	eventually(t, "all arrive", func() bool {
		return len(all.messages()) >= each+3 && len(slackish.messages()) >= each+3 && len(other.messages()) >= each
	})
	eventually(t, "all are kept as delivered", func() bool {
		return !slices.ContainsFunc(w.deliveries(t, webhook), func(d store.Delivery) bool {
			return d.Status != "delivered" || len(d.Attempts) != 1 || d.Attempts[0].Code != 200
		})
	})
	if a, s, o := len(all.messages()), len(slackish.messages()), len(other.messages()); a != each+3 || s != each+3 || o != each {
		t.Errorf("%d, %d and %d messages arrived, want %d, %d and %d: each once", a, s, o, each+3, each+3, each)
	}
	ids := map[string]bool{}
	for _, m := range all.messages() {
		if !verify(secret, m) {
			t.Errorf("a signature does not fit: %v", m.header)
		}
		ids[m.header.Get("Webhook-Id")] = true
		if strings.Contains(string(m.body), "hunter2") {
			t.Errorf("a message has a secret in it: %s", m.body)
		}
		var p payload
		if json.Unmarshal(m.body, &p) != nil || p.Data.URL == "" || p.Data.Cluster.Name != "prod" {
			t.Errorf("a message = %s, want where to look, and which cluster", m.body)
		}
		if p.Type == "failure" && (p.Data.Provision.ID != failed || p.Data.Provision.ErrorCode != "plan_failed") {
			t.Errorf("the failure is told as %s", m.body)
		}
		m.body = append(m.body, ' ')
		if verify(secret, m) {
			t.Error("a changed body has a signature that fits")
		}
	}
	if len(ids) != each+3 {
		t.Errorf("%d ids, want one for each message", len(ids))
	}
	for _, m := range slackish.messages() {
		if s := string(m.body); strings.Contains(s, "<!") || !strings.Contains(s, `"blocks":[`) {
			t.Errorf("to Slack went %s, want blocks, and nothing that calls everybody", s)
		}
	}
	// What a leaked database has of it.
	var leaked string
	if err := w.Conn.QueryRow(t.Context(), "SELECT string_agg(u::text, '') || (SELECT string_agg(h::text, '') FROM public.webhooks h) || (SELECT string_agg(a::text, '') FROM public.audit_events a) FROM tendril.webhook_urls u").Scan(&leaked); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(leaked, "s3cret") || strings.Contains(leaked, strings.TrimPrefix(secret, "whsec_")) {
		t.Error("the database has a webhook's URL or secret in plain text")
	}
}

// A receiver that fails is tried again and given up in the end, and holds up no
// other; one that says it is gone is not asked again.
func TestFailingReceivers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const room = 4
	n := w.notifier(t, func(n *Notifier) { n.atOnce = room })
	release := make(chan struct{})
	slow := newReceiver(t, func(int, http.ResponseWriter) { <-release })
	t.Cleanup(func() { close(release) })
	flaky := newReceiver(t, func(n int, w http.ResponseWriter) {
		if n < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	broken := newReceiver(t, func(_ int, w http.ResponseWriter) { w.WriteHeader(http.StatusTeapot) })
	gone := newReceiver(t, func(_ int, w http.ResponseWriter) { w.WriteHeader(http.StatusGone) })
	astray := newReceiver(t, func(_ int, w http.ResponseWriter) {
		w.Header().Set("Location", flaky.URL)
		w.WriteHeader(http.StatusTemporaryRedirect)
	})
	w.webhook(t, n, "generic", slow.URL)
	for range 3 * room { // more than there is room for
		w.provision(t, "a", "SUCCESS", "", "")
	}
	ids := map[string]uuid.UUID{}
	for name, r := range map[string]*receiver{"flaky": flaky, "broken": broken, "gone": gone, "astray": astray} {
		ids[name], _ = w.webhook(t, n, "generic", r.URL)
	}
	w.provision(t, "a", "SUCCESS", "", "")
	settled := func(name, status string, attempts int) {
		eventually(t, name+" is settled", func() bool { return w.deliveries(t, ids[name])[0].Status != "waiting" })
		d := w.deliveries(t, ids[name])[0]
		if d.Status != status || len(d.Attempts) != attempts || d.NextAt != nil || d.FinishedAt == nil {
			t.Errorf("%s: %s after %d attempts (%+v), want %s after %d", name, d.Status, len(d.Attempts), d, status, attempts)
		}
	}
	settled("flaky", "delivered", 3)
	settled("broken", "failed", 4)
	settled("gone", "failed", 1)
	settled("astray", "failed", 4)
	if got := flaky.messages(); len(got) != 3 || got[0].header.Get("Webhook-Id") != got[2].header.Get("Webhook-Id") {
		t.Errorf("the flaky one got %d messages, want one message three times, and none by a redirect", len(got))
	}
	if d := w.deliveries(t, ids["broken"])[0]; d.Attempts[0].Code != http.StatusTeapot || d.Attempts[0].Error == "" {
		t.Errorf("the log says %+v, want the answer", d.Attempts[0])
	}
	if h, err := w.admin.Webhook(t.Context(), ids["gone"]); err != nil || h.Enabled || h.DisabledWhy == nil || *h.DisabledWhy != "gone" {
		t.Errorf("the one that is gone = %+v, %v, want it disabled", h, err)
	}
	w.Exec(t, "UPDATE public.webhooks SET failing_since = now() - interval '4 days' WHERE id = $1", ids["broken"])
	w.provision(t, "b", "SUCCESS", "", "")
	eventually(t, "what has failed for long is disabled", func() bool {
		h, err := w.admin.Webhook(t.Context(), ids["broken"])
		return err == nil && !h.Enabled && h.DisabledWhy != nil && *h.DisabledWhy == "failing"
	})
	// Once more, and with another secret.
	delivery := w.deliveries(t, ids["flaky"])[0].ID
	secret, err := n.Change(t.Context(), w.admin, ids["flaky"], "", store.WebhookSettings{Rotate: true})
	if err != nil {
		t.Fatal(err)
	}
	before := len(flaky.messages())
	if _, err := w.admin.SendWebhook(t.Context(), ids["flaky"], &delivery); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is sent again", func() bool { return len(flaky.messages()) > before })
	if again := flaky.messages()[before]; !verify(secret, again) || again.header.Get("Webhook-Id") != "msg_"+delivery.String() {
		t.Errorf("sent again it is %v, want the same id and the new secret", again.header)
	}
}
