package api_test

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/api"
	"github.com/tendril-run/tendril/internal/controlplane/notify"
)

// withNotifier has the API send webhooks, as a server that has a key for it.
func (w *world) withNotifier(t *testing.T) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, notify.NewKey(), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := notify.ReadKey(file)
	if err != nil {
		t.Fatal(err)
	}
	w.serve(t, api.Config{Notifier: notify.New(w.database, notify.Options{Key: key, Log: slog.New(slog.NewTextHandler(w.logged, nil))})})
}

// What admins do with webhooks, and what nobody else may, or see of them.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.as(t, "admin", "POST", "/webhooks", `{"name": "n", "url": "https://h.example/x", "events": ["drift"]}`).want(t, "without a key", http.StatusConflict, "no_key")
	w.as(t, "viewer", "POST", "/webhooks", `{"name": "n", "url": "https://h.example/x", "events": ["drift"]}`).want(t, "a viewer without a key", http.StatusNotFound, "org_not_found")
	w.as(t, "admin", "PATCH", "/webhooks/"+w.Org.String(), `{"name": "n"}`).want(t, "a change of none without a key", http.StatusNotFound, "webhook_not_found")
	w.withNotifier(t)

	const secretURL = "https://hooks.example/services/s3cret"
	body := func(url string) string {
		return `{"name": "deploys", "kind": "generic", "url": "` + url + `", "events": ["success", "failure"], "workspace": "prod-*"}`
	}
	for _, who := range []string{"viewer", "operator", "stranger"} {
		w.as(t, who, "POST", "/webhooks?org="+w.Org.String(), body(secretURL)).want(t, who+" makes a webhook", http.StatusNotFound, "org_not_found")
	}
	for url, detail := range map[string]string{"http://hooks.example/": "https://", "https://169.254.169.254/": "Internet", "https://[::1]/": "Internet"} {
		a := w.as(t, "admin", "POST", "/webhooks", body(url)).want(t, "POST with "+url, http.StatusUnprocessableEntity, "bad_url")
		if !strings.Contains(a.text("detail"), detail) || a.text("errors.0.location") != "body.url" {
			t.Errorf("POST with %s = %s, want the field named and why", url, a.body)
		}
	}
	made := w.as(t, "admin", "POST", "/webhooks", body(secretURL), "Idempotency-Key: k").want(t, "POST", http.StatusCreated, "")
	path := "/webhooks/" + made.text("id")
	if made.header.Get("Location") != "/api/v1"+path || !strings.HasPrefix(made.text("secret"), "whsec_") || made.text("host") != "https://hooks.example" {
		t.Errorf("POST = %s, want where it is, and its secret", made.body)
	}
	w.as(t, "admin", "POST", "/webhooks", body(secretURL)).want(t, "the same name again", http.StatusConflict, "webhook_exists")
	if again := w.as(t, "admin", "POST", "/webhooks", body(secretURL), "Idempotency-Key: k"); again.status != http.StatusConflict || strings.Contains(string(again.body), "whsec_") {
		t.Errorf("a repeat = %d %s, want it refused without the secret", again.status, again.body)
	}
	w.as(t, "admin", "PATCH", path, `{"enabled": false, "workspace": ""}`).want(t, "PATCH", http.StatusOK, "")
	w.as(t, "admin", "POST", path+"/test", "").want(t, "a test while it is disabled", http.StatusConflict, "webhook_disabled")
	w.as(t, "admin", "PATCH", path, `{"enabled": true}`).want(t, "PATCH", http.StatusOK, "")
	var sent string
	for n, replayed := range []string{"", "true"} { // the second time after a lost answer
		a := w.as(t, "admin", "POST", path+"/test", "", "Idempotency-Key: try").want(t, "a test", http.StatusAccepted, "")
		if n == 0 {
			sent = a.text("id")
		}
		if a.text("id") != sent || a.header.Get("Idempotency-Replayed") != replayed || a.header.Get("Location") != "/api/v1"+path+"/deliveries" {
			t.Errorf("test %d = %s %v, want the first one's delivery, and where it stands", n+1, a.body, a.header)
		}
		again := w.as(t, "admin", "POST", path+"/deliveries/"+sent+"/redeliver", "", "Idempotency-Key: again").want(t, "once more", http.StatusAccepted, "")
		if again.text("id") != sent || again.header.Get("Idempotency-Replayed") != replayed {
			t.Errorf("once more, %d = %s %v, want the same delivery, sent once", n+1, again.body, again.header)
		}
	}
	if a := w.as(t, "admin", "GET", path+"/deliveries", ""); a.text("items.0.id") != sent || a.text("items.0.event") != "test" || a.text("items.1.id") != "" {
		t.Errorf("GET deliveries = %s, want the one test", a.body)
	}
	if rotated := w.as(t, "admin", "POST", path+"/rotate", "").want(t, "rotate", http.StatusOK, ""); rotated.text("secret") == made.text("secret") || rotated.text("secret") == "" {
		t.Error("the secret stays the same")
	}
	for _, who := range []string{"viewer", "operator"} {
		if a := w.as(t, who, "GET", path, "").want(t, who+" reads it", http.StatusOK, ""); strings.Contains(string(a.body), "s3cret") || a.text("workspace") != "" || a.text("events.1") != "success" {
			t.Errorf("%s reads %s, want it as it was changed and without its URL", who, a.body)
		}
	}
	for _, who := range []string{"viewer", "operator", "stranger"} {
		w.as(t, who, "GET", path+"/deliveries", "").want(t, who+" lists deliveries", http.StatusNotFound, "webhook_not_found")
		for method, sub := range map[string]string{"PATCH": "", "DELETE": "", "POST": "/test"} {
			body := ""
			if method == "PATCH" {
				body = `{"name": "mine"}`
			}
			w.as(t, who, method, path+sub, body).want(t, who+" "+method+" "+sub, http.StatusNotFound, "webhook_not_found")
		}
	}
	w.as(t, "stranger", "GET", path, "").want(t, "a stranger's GET", http.StatusNotFound, "webhook_not_found")
	w.as(t, "admin", "DELETE", path, "").want(t, "DELETE", http.StatusNoContent, "")
	w.as(t, "admin", "GET", path, "").want(t, "GET of what is removed", http.StatusNotFound, "webhook_not_found")
	if logged := w.logged.String(); strings.Contains(logged, "s3cret") {
		t.Errorf("the log has the URL: %s", logged)
	}
}
