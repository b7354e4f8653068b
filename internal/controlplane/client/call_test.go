package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/problem"
)

var (
	anID  = uuid.MustParse("11111111-1111-4111-8111-111111111111")
	anID2 = uuid.MustParse("22222222-2222-4222-8222-222222222222")
)

func TestListReadsAllPages(t *testing.T) {
	t.Parallel()
	c := asking(t, func(w http.ResponseWriter, r *http.Request) {
		page := map[string]string{ // the second is empty and not the last
			"":  `{"items": [{"name": "a"}], "next_cursor": "1"}`,
			"1": `{"items": [], "next_cursor": "2"}`,
			"2": `{"items": [{"name": "b"}, {"name": "c"}], "next_cursor": "3"}`,
			"3": `{"items": [{"name": "d"}]}`,
		}
		_, _ = io.WriteString(w, page[r.URL.Query().Get("cursor")])
	})
	for limit, want := range map[int]string{1: "a", 3: "abc", 100: "abcd"} {
		list, err := c.Workspaces(t.Context(), limit)
		got := ""
		for _, w := range list {
			got += w.Name
		}
		if err != nil || got != want {
			t.Errorf("Workspaces(%d) = %s, %v, want %s", limit, got, err, want)
		}
	}
}

// What a server says no by becomes the errors of package problem.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		status       int
		kind, answer string
		want         string
		away         bool
	}{
		{409, "application/problem+json", `{"title": "Conflict", "detail": "the workspace is bound", "reason": "workspace_bound", "hint": "rebind it"}`, "PT409 workspace_bound the workspace is bound (rebind it)", false},
		{422, "application/problem+json", `{"detail": "it is wrong", "reason": "bad_snapshot", "errors": [{"location": "body.config_snapshot.workspace", "message": "missing"}]}`, "PT422 bad_snapshot it is wrong\nconfig_snapshot.workspace: missing", false},
		{422, "application/problem+json", `{"detail": "name: too long", "errors": [{"location": "body.name", "message": "too long"}]}`, "PT422  name: too long", false},
		{401, "application/problem+json", `{"detail": "nobody is signed in", "reason": "unauthenticated"}`, "does not know you: nobody is signed in (log in: trellis login http://", false},
		{503, "application/problem+json", `{"detail": "the database does not answer", "reason": "database_unavailable"}`, "could not ask who you are: the database does not answer", true},
		{502, "text/html", "<h1>Bad gateway</h1>", "answers 502 Bad Gateway", true},
		{404, "text/html", "<h1>Welcome</h1>", "not as a Tendril server would", true},
		{200, "text/html", "<h1>Welcome</h1>", "something else than a Tendril server", true},
		{302, "text/html", "", "sends to https://other.example (if that is your server", false},
	} {
		var asked atomic.Int32
		c := asking(t, func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			w.Header().Set("Content-Type", tt.kind)
			w.Header().Set("Location", "https://other.example/x?code=hunter2")
			w.WriteHeader(tt.status)
			_, _ = io.WriteString(w, tt.answer)
		})
		_, err := c.Me(t.Context())
		text := fmt.Sprint(err)
		refused, isRefused := errors.AsType[*problem.RefusedError](err)
		_, away := errors.AsType[*problem.UnreachableError](err)
		if isRefused {
			text = refused.Code + " " + refused.Reason + " " + text
		}
		if !strings.Contains(text, tt.want) || away != tt.away || isRefused == tt.away || strings.Contains(text, "hunter2") {
			t.Errorf("answered %d %s: error = %q, want %q, and nothing secret", tt.status, tt.answer, text, tt.want)
		}
		if again := tt.away && tt.status >= 500; (asked.Load() > 1) != again {
			t.Errorf("answered %d: asked %d times, want it repeated: %t", tt.status, asked.Load(), again)
		}
	}
}

// An answer that is lost is asked for again, under the same key; a DELETE is not.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	for method, most := range map[string]int{http.MethodGet: 3, http.MethodPost: 3, http.MethodPut: 3, http.MethodDelete: 1} {
		var mu sync.Mutex
		var keys []string
		c := asking(t, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			keys = append(keys, r.Header.Get("Idempotency-Key"))
			n := len(keys)
			mu.Unlock()
			if n < 3 {
				panic(http.ErrAbortHandler)
			}
			_, _ = io.WriteString(w, "{}")
		})
		_, err := ask[map[string]any](t.Context(), c, call{doing: "try", method: method, path: []string{"x"}, body: map[string]int{}})
		_, away := errors.AsType[*problem.UnreachableError](err)
		mu.Lock()
		defer mu.Unlock()
		if len(keys) != most || (err == nil) != (most == 3) || away != (most == 1) {
			t.Errorf("%s: asked %d times, error %v, want %d times", method, len(keys), err, most)
		}
		if method == http.MethodPost && (keys[0] == "" || keys[0] != keys[1] || keys[0] != keys[2]) {
			t.Errorf("POST was repeated under the keys %q, want one", keys)
		}
	}
}

// An error that a server keeps for a key is final: to ask again would be answered the same.
func TestKeptErrors(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	c := asking(t, func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) > 1 {
			w.Header().Set("Idempotency-Replayed", "true")
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusBadGateway)
		_, _ = io.WriteString(w, `{"detail": "Failed to communicate with Ironic", "reason": "pool_unreachable"}`)
	})
	if _, err := ask[map[string]any](t.Context(), c, call{doing: "try", method: http.MethodPost, path: []string{"x"}, body: map[string]int{}}); err == nil || !strings.Contains(err.Error(), "Failed to communicate with Ironic") || asked.Load() != 2 {
		t.Errorf("a kept 502 = %v after %d requests, want it after two", err, asked.Load())
	}
}

func TestNothingAnswers(t *testing.T) {
	t.Parallel()
	c, err := New(Options{URL: "http://127.0.0.1:1", Token: secret})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Me(t.Context())
	if _, away := errors.AsType[*problem.UnreachableError](err); !away || !strings.Contains(err.Error(), "127.0.0.1:1 cannot be reached") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("Me() without a server = %v, want an *UnreachableError", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Me(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Me() of who has let go = %v, want context.Canceled", err)
	}
	for _, bad := range []string{"", "trellis.example", "ftp://x", "https://ada:hunter2@x", "https://x/?a=hunter2", "http://"} {
		if _, err := New(Options{URL: bad}); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("New(%s) = %v, want an error that does not quote it", bad, err)
		}
	}
}

// A redirect does not get the token, and a CA of one's own is trusted.
func TestTokenGoesToItsServerOnly(t *testing.T) {
	t.Parallel()
	var leaked atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { leaked.Store(true) }))
	t.Cleanup(other.Close)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/me") {
			_, _ = io.WriteString(w, `{"name": "Ada"}`)
			return
		}
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of what is refused on purpose
	server.StartTLS()
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pemOf(server.Certificate().Raw), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := New(Options{URL: server.URL, Token: secret, CAFile: file})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if me, err := c.Me(t.Context()); err != nil || me.Name != "Ada" {
		t.Errorf("Me() by a CA file = %v, %v, want Ada", me, err)
	}
	if _, err := c.Clusters(t.Context()); err == nil || leaked.Load() {
		t.Errorf("Clusters() of a server that redirects = %v, asked there %t, want an error and no", err, leaked.Load())
	}
	c, err = New(Options{URL: server.URL, Token: secret})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.timing.retry = time.Millisecond
	if _, err := c.Me(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("Me() without the CA = %v, want the certificate refused", err)
	}
}
