package notify

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	waiting "github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/webhook"
)

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
	hook, secret := w.webhook(t, n, "generic", all.URL+"/hook?token=s3cret")
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

	waiting.Await(t, "all arrive", func() bool {
		return len(all.messages()) >= each+3 && len(slackish.messages()) >= each+3 && len(other.messages()) >= each
	})
	waiting.Await(t, "all are kept as delivered", func() bool {
		return !slices.ContainsFunc(w.deliveries(t, hook), func(d store.Delivery) bool {
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
		var p webhook.Message
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
		waiting.Await(t, name+" is settled", func() bool { return w.deliveries(t, ids[name])[0].Status != "waiting" })
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
	waiting.Await(t, "what has failed for long is disabled", func() bool {
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
	waiting.Await(t, "it is sent again", func() bool { return len(flaky.messages()) > before })
	if again := flaky.messages()[before]; !verify(secret, again) || again.header.Get("Webhook-Id") != "msg_"+delivery.String() {
		t.Errorf("sent again it is %v, want the same id and the new secret", again.header)
	}
}
