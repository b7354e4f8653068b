package serve_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/controlplane/serve"
	"github.com/tendril-run/tendril/internal/controlplane/signin"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// What a person has asked for before the end is answered, and streams end: a
// restart fails nobody's deploy.
func TestStopAnswersWhatIsOpen(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	user := uuid.New()
	w.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'viewer')", w.Org, user)
	database, err := store.Connect(t.Context(), w.URL, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer database.Close()
	token, err := signin.NewToken(t.Context(), database, user, "test")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	o, said := options(w.URL)
	urls, ended := make(chan string, 1), make(chan error, 1)
	o.Started = func(url string, _ int) { urls <- url }
	go func() { ended <- serve.Run(ctx, o) }()
	url := <-urls
	ask := func(path string) *http.Response {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
		if err != nil {
			t.Error(err)
			return nil
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
		if err != nil {
			t.Errorf("GET %s: %v", path, err)
			return nil
		}
		t.Cleanup(func() { _ = response.Body.Close() })
		return response
	}
	stream := ask("/live") //nolint:bodyclose // when the test is over
	if stream == nil || stream.StatusCode != http.StatusOK {
		t.Fatalf("the stream of hints = %+v, want 200", stream)
	}

	locker, err := pgx.Connect(t.Context(), w.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close(context.Background()) })
	held, err := locker.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := held.Exec(t.Context(), "LOCK TABLE public.orgs"); err != nil {
		t.Fatal(err)
	}
	answered := make(chan *http.Response, 1)
	go func() { answered <- ask("/api/v1/clusters") }() //nolint:bodyclose // likewise; it asks for the organisation, then for its clusters
	patience.AwaitShowing(t, "what the test wants", said.String, func() bool {
		var waits bool
		err := w.Conn.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").Scan(&waits)
		return err == nil && waits
	})
	stop()
	_, _ = io.Copy(io.Discard, stream.Body) // ends by itself
	patience.AwaitShowing(t, "what the test wants", said.String, func() bool {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := <-answered; r != nil && r.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(r.Body)
		t.Errorf("what was open = %s %s, want it answered", r.Status, body)
	}
	if err := <-ended; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}
