package api_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/api"
	"github.com/tendril-run/tendril/internal/controlplane/live"
)

// A log by ranges, by its tail, as a file and as a stream: always the same rows.
func TestLogs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	hub := live.NewHub(w.database, slog.New(slog.DiscardHandler), live.Limits{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		hub.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	w.serve(t, api.Config{Live: hub})
	id := w.deploy(t).text("id")
	var whole strings.Builder
	for n := range 30 { // more than a piece of a download
		text := fmt.Sprintf("%d \x1b[31m<script>\u202e\n%s", n, strings.Repeat("x", n*700))
		whole.WriteString(text + "\n")
		w.Exec(t, "SELECT tendril.system_line($1, $2)", id, text)
	}
	w.Exec(t, "INSERT INTO public.provision_events (provision_id, org_id, kind, at, detail) SELECT $1, $2, 'stage', now(), jsonb_build_object('stage', s) FROM unnest('{checkout,init}'::text[]) s", id, w.Org)
	w.Exec(t, "SELECT tendril.end_provision($1, 'CANCELLED', NULL, NULL)", id)
	base := "/provisions/" + id
	get := func(path string, headers ...string) answer {
		return w.as(t, "viewer", "GET", base+path, "", headers...)
	}

	for _, old := range []bool{false, true} {
		if old {
			w.Exec(t, "UPDATE public.provisions SET finished_at = finished_at - interval '8 days' WHERE id = $1", id)
			w.Exec(t, "SELECT tendril.archive_logs()")
			var left int
			if err := w.Conn.QueryRow(t.Context(), "SELECT count(*) FROM public.provision_logs WHERE provision_id = $1", id).Scan(&left); err != nil || left > 0 {
				t.Fatalf("rows that are not archived = %d, %v, want none", left, err)
			}
		}
		for _, c := range []struct{ query, first, next, last string }{
			{"?limit=3", "1", "3", "30"},
			{"?after=3&limit=1000", "4", "30", "30"},
			{"?tail=5", "26", "30", "30"},
			{"?tail=5&after=28", "29", "30", "30"},
			{"?after=30", "", "30", "30"},
		} {
			a := get("/logs"+c.query).want(t, "GET logs"+c.query, http.StatusOK, "")
			if first, next, last := a.text("items.0.seq"), a.text("next_after"), a.text("last_seq"); first != c.first || next != c.next || last != c.last {
				t.Errorf("GET logs%s begins with %q and says next_after %s of %s, want %q, %s of %s", c.query, first, next, last, c.first, c.next, c.last)
			}
		}
		file := get("/logs?format=text").want(t, "a download", http.StatusOK, "")
		if string(file.body) != whole.String() {
			t.Errorf("the downloaded log has %d bytes, want the %d that were said", len(file.body), whole.Len())
		}
		if name := file.header.Get("Content-Disposition"); !strings.HasPrefix(name, `attachment; filename="provision-`) {
			t.Errorf("Content-Disposition = %q, want a file to keep", name)
		}
		if stream := string(get("/logs/stream?after=28").body); !strings.Contains(stream, "id: 29\nevent: log\ndata: {\"seq\":29,") ||
			strings.Contains(stream, "id: 28\n") || !strings.HasSuffix(stream, "event: end\ndata: {\"status\":\"CANCELLED\",\"last_seq\":30}\n\n") {
			t.Errorf("the stream after 28 = %.2000q, want two rows, a status and the end", stream)
		}
		if stream := string(get("/logs/stream?after=2", "Last-Event-ID: 29").body); strings.Count(stream, "event: log") != 1 {
			t.Errorf("coming back with Last-Event-ID 29 = %.500q, want the last row", stream)
		}
	}
	if a := get("/events").want(t, "GET events", http.StatusOK, ""); a.text("items.0.kind") != "stage" || a.text("items.1.detail.stage") != "init" {
		t.Errorf("GET events = %s, want both", a.body)
	}
	if stream := string(get("/events/stream").body); strings.Count(stream, "event: event\n") != 2 || !strings.Contains(stream, "event: end\n") {
		t.Errorf("the stream of events = %q, want both and the end", stream)
	}
	get("/logs/stream", "Last-Event-ID: x").want(t, "a bad Last-Event-ID", http.StatusUnprocessableEntity, "invalid_request")
	for _, path := range []string{"/logs", "/logs?format=text", "/logs/stream", "/events", "/events/stream"} {
		w.as(t, "stranger", "GET", base+path, "").want(t, "a stranger's GET "+path, http.StatusNotFound, "provision_not_found")
		w.as(t, "", "GET", base+path, "").want(t, "nobody's GET "+path, http.StatusUnauthorized, "")
	}
}
