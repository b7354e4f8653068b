package api_test

import (
	"net/http"
	"strings"
	"testing"
)

// What nobody foresaw is logged once, and the client is told where to look and
// nothing else; a database that is away says when to come back.
func TestFaultsOfTheServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Exec(t, "ALTER TABLE public.templates RENAME COLUMN repo TO gone")
	got := w.as(t, "viewer", "GET", "/templates", "").want(t, "GET of a column that is gone", http.StatusInternalServerError, "internal")
	if text := string(got.body); strings.Contains(text, "repo") || strings.Contains(text, "SQLSTATE") || !strings.HasPrefix(got.text("instance"), "urn:uuid:") {
		t.Errorf("the answer is %s, want an instance and nothing of the inside", text)
	}
	if said := w.logged.String(); strings.Count(said, got.text("instance")) != 1 || strings.Count(said, "level=ERROR") != 1 || !strings.Contains(said, "SQLSTATE") {
		t.Errorf("the log has %q, want the instance once, with why", said)
	}
	w.database.Close()
	got = w.as(t, "viewer", "GET", "/clusters", "").want(t, "GET without a database", http.StatusServiceUnavailable, "database_unavailable")
	if got.header.Get("Retry-After") == "" || strings.Contains(string(got.body), "pool") {
		t.Errorf("the answer is %s %v, want when to try again and nothing of the inside", got.body, got.header)
	}
}
