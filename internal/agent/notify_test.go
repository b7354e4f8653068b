package agent

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/webhook"
)

// noticed is a receiver of webhooks.
type noticed struct {
	*httptest.Server
	mu      sync.Mutex
	headers []http.Header
	bodies  []string
}

// notices is a receiver whose answer to the message of a number, from 1, is chosen.
func notices(t *testing.T, answer func(n int, w http.ResponseWriter)) *noticed {
	t.Helper()
	n := &noticed{}
	n.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		n.mu.Lock()
		n.headers, n.bodies = append(n.headers, r.Header), append(n.bodies, string(body))
		count := len(n.bodies)
		n.mu.Unlock()
		answer(count, w)
	}))
	t.Cleanup(n.Close)
	return n
}

func (n *noticed) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.bodies)
}

// The agent says itself that a run waits for a person, again until that has arrived, and
// nothing but which run it is.
func TestAgentNotifiesOfManualWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const secret = "0123456789abcdef0123456789abcdef"
	receiver := notices(t, func(n int, rw http.ResponseWriter) {
		if n == 1 {
			rw.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	s := w.setup()
	s.Webhook, s.WebhookSecret = receiver.URL+"/hook?token=s3cret", secret
	a := startAgent(t, s)
	id := w.deploy(t, "prod", "print 1", "ask")
	w.becomes(t, id, "AWAITING_INPUT")
	patience.Await(t, "the message, and the same again", func() bool { return receiver.count() == 2 })
	w.becomes(t, w.deploy(t, "dev", "print 1", "plan"), "AWAITING_APPROVAL") // is the console's to tell of
	a.stops(t)
	receiver.mu.Lock()
	defer receiver.mu.Unlock()
	if len(receiver.bodies) != 2 || receiver.bodies[0] != receiver.bodies[1] || receiver.headers[0].Get("Webhook-Id") != receiver.headers[1].Get("Webhook-Id") {
		t.Fatalf("the messages are %q, want one, sent twice", receiver.bodies)
	}
	body, header := receiver.bodies[1], receiver.headers[1]
	var m webhook.Message
	if err := json.Unmarshal([]byte(body), &m); err != nil {
		t.Fatal(err)
	}
	if p := m.Data.Provision; m.Type != "awaiting_input" || p.ID != id || p.Number == 0 || p.Operation != "apply" || p.Status != "AWAITING_INPUT" || m.Data.Workspace.Name != "prod" || m.Data.Cluster.Name == "" {
		t.Errorf("the message is %s", body)
	}
	if strings.Contains(body, "hunter2") || strings.Contains(body, "org_id") {
		t.Errorf("the message has what the agent does not tell: %s", body)
	}
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = fmt.Fprintf(mac, "%s.%s.%s", header.Get("Webhook-Id"), header.Get("Webhook-Timestamp"), body)
	if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); header.Get("Webhook-Signature") != want {
		t.Errorf("the signature is %q, want %q", header.Get("Webhook-Signature"), want)
	}
	a.says(t, "the notification that this run waits for a person did not arrive")
	if strings.Contains(a.log.String(), "s3cret") {
		t.Error("the agent's log has the webhook's URL")
	}
}

// A receiver that answers with a redirect, or never, holds up neither a run nor the agent's end.
func TestReceiverThatDoesNotTakeMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	led := notices(t, func(int, http.ResponseWriter) {})
	receiver := notices(t, func(_ int, rw http.ResponseWriter) {
		rw.Header().Set("Location", led.URL)
		rw.WriteHeader(http.StatusTemporaryRedirect)
	})
	s := w.setup()
	s.Webhook = receiver.URL
	a := startAgent(t, s)
	for i := range 3 {
		w.becomes(t, w.deploy(t, fmt.Sprint("prod", i), "ask"), "AWAITING_INPUT")
	}
	patience.Await(t, "an attempt", func() bool { return receiver.count() > 0 })
	a.stops(t)
	if led.count() > 0 {
		t.Error("a redirect was followed")
	}
	a.says(t, "which is not followed")
}
