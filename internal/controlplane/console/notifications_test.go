package console_test

import (
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/console"
	"github.com/tendril-run/tendril/internal/controlplane/notify"
)

// A webhook from being added to being removed, by forms alone.
func TestNotificationPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if page := w.get(t, w.admin, "/notifications"); !strings.Contains(page, "--key-file") || strings.Contains(page, "<form method=\"post\" action=\"/notifications") {
		t.Error("without a key the page does not say so, or has a form")
	}
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, notify.NewKey(), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := notify.ReadKey(file)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	w.pages, err = console.New(console.Config{Database: w.database, Notifier: notify.New(w.database, notify.Options{Key: key, Log: log}), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	form := url.Values{"name": {"<b>deploys"}, "kind": {"generic"}, "url": {"http://h.example/s3cret"}, "event": {"failure"}}
	if answer, page := w.ask(t, w.admin, "/notifications", form); answer.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(page, "https://") || !strings.Contains(page, "&lt;b&gt;deploys") {
		t.Errorf("a bad URL = %d, want the form again, with what was typed", answer.StatusCode)
	}
	form.Set("url", "https://h.example/s3cret")
	if answer, _ := w.ask(t, w.operator, "/notifications", form); answer.StatusCode != http.StatusNotFound {
		t.Errorf("an operator adds one = %d, want 404", answer.StatusCode)
	}
	answer, page := w.ask(t, w.admin, "/notifications", form)
	secret := regexp.MustCompile(`whsec_[A-Za-z0-9+/=&]+`)
	path := regexp.MustCompile(`/notifications/[0-9a-f-]{36}`).FindString(page)
	if answer.StatusCode != http.StatusOK || !secret.MatchString(page) || path == "" {
		t.Fatalf("adding one = %d %s, want its secret", answer.StatusCode, page)
	}
	if answer, _ := w.ask(t, w.admin, path+"/test", url.Values{}); answer.StatusCode != http.StatusSeeOther {
		t.Errorf("a test = %d, want to be sent back", answer.StatusCode)
	}
	w.Exec(t, `UPDATE public.webhook_deliveries SET status = 'failed', next_at = NULL, attempts = '[{"at": "2026-01-01T00:00:00Z", "code": 500, "duration_ms": 7, "error": "<script>"}]'`)
	for _, page := range []string{w.get(t, w.admin, path), w.get(t, w.admin, "/notifications"), w.get(t, w.viewer, path), w.get(t, w.viewer, "/notifications")} {
		if strings.Contains(page, "s3cret") || secret.MatchString(page) || strings.Contains(page, "<script>&") || !strings.Contains(page, "https://h.example") {
			t.Errorf("a page shows what it must not: %s", page)
		}
	}
	if page := w.get(t, w.admin, path); !strings.Contains(page, `"GIVEN_UP"`) || !strings.Contains(page, "Send again") || !strings.Contains(page, "&lt;script&gt;") {
		t.Error("the page does not tell what came of the test")
	}
	if page := w.get(t, w.viewer, path); strings.Contains(page, `"GIVEN_UP"`) || strings.Contains(page, "<form method=\"post\" action=\"/notifications") {
		t.Error("a viewer sees deliveries, or forms")
	}
	for _, step := range []struct {
		to     string
		form   url.Values
		status int
	}{
		{"", url.Values{"name": {"renamed"}}, http.StatusUnprocessableEntity}, // no event
		{"", url.Values{"name": {"renamed"}, "event": {"drift", "success"}, "workspace": {"prod-*"}}, http.StatusSeeOther},
		{"", url.Values{"enabled": {"false"}}, http.StatusSeeOther},
		{"", url.Values{"enabled": {"true"}}, http.StatusSeeOther},
		{"/rotate", url.Values{}, http.StatusOK},
		{"/remove", url.Values{}, http.StatusSeeOther},
		{"/remove", url.Values{}, http.StatusNotFound},
	} {
		if answer, page := w.ask(t, w.admin, path+step.to, step.form); answer.StatusCode != step.status {
			t.Errorf("POST %s %v = %d, want %d: %.2000s", step.to, step.form, answer.StatusCode, step.status, page)
		}
	}
}
