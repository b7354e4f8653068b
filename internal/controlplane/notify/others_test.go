package notify

import (
	"context"
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	waiting "github.com/tendril-run/tendril/internal/testkit/patience"
)

// What an agent reports neither waits for who changes webhooks nor fails by what
// goes wrong there.
func TestNoReportDependsOnWebhooks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := New(w.database, Options{Key: w.key, Allowed: Local})
	going, _ := w.webhook(t, n, "generic", "http://127.0.0.1:1/")
	staying, _ := w.webhook(t, n, "generic", "http://127.0.0.1:1/")
	other, err := pgx.Connect(t.Context(), w.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close(context.Background()) })
	removal, err := other.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := removal.Exec(t.Context(), "DELETE FROM public.webhooks WHERE id = $1", going); err != nil {
		t.Fatal(err)
	}
	w.Exec(t, "SET lock_timeout = '1s'")
	w.provision(t, "a", "SUCCESS", "", "") // fails the test if it has to wait
	if err := removal.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := len(w.deliveries(t, staying)); got != 1 {
		t.Errorf("%d messages to the other webhook, want 1", got)
	}
	w.Exec(t, "SELECT tendril.expire()")
	if left := w.Text(t, "SELECT count(*)::text FROM public.webhook_deliveries WHERE webhook_id = $1", going); left != "0" {
		t.Errorf("%s messages to one that was removed stay", left)
	}
	w.Exec(t, "ALTER TABLE public.webhook_deliveries ADD CHECK (false) NOT VALID")
	w.provision(t, "a", "SUCCESS", "", "")
}

// One organisation's receivers that never answer leave room for those of others.
func TestOneOrganisationTakesNotAllRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release := make(chan struct{})
	stuck := newReceiver(t, func(int, http.ResponseWriter) { <-release })
	t.Cleanup(func() { close(release) })
	n := w.notifier(t, func(n *Notifier) { n.atOnce = 2 * orgAtOnce })
	for range 3 * orgAtOnce {
		w.webhook(t, n, "generic", stuck.URL)
	}
	for range 2 {
		w.provision(t, "a", "SUCCESS", "", "")
	}
	waiting.Await(t, "all that may be is under way", func() bool { return len(stuck.messages()) >= orgAtOnce })

	admin := uuid.New()
	var org uuid.UUID
	if err := w.Conn.QueryRow(t.Context(), "WITH o AS (INSERT INTO public.orgs (name) VALUES ('other') RETURNING id), m AS (INSERT INTO public.org_members SELECT id, $1, 'admin' FROM o) SELECT id FROM o", admin).Scan(&org); err != nil {
		t.Fatal(err)
	}
	answers, name := newReceiver(t, nil), "w"
	theirs := w.database.As(admin)
	id, _, err := n.Create(t.Context(), theirs, org, answers.URL, store.WebhookSettings{Name: &name, Kind: "generic", Events: []string{"success"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := theirs.SendWebhook(t.Context(), id, nil); err != nil {
		t.Fatal(err)
	}
	waiting.Await(t, "the other organisation's message arrives", func() bool { return len(answers.messages()) == 1 })
	if under := len(stuck.messages()); under >= 2*orgAtOnce {
		t.Errorf("%d messages of one organisation are under way, want room for others", under)
	}
}
