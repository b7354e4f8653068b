package signin_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/signin"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// A stream goes on for hours; it ends soon after the token that let it in, and no
// other does.
func TestStreamsEndWithTheirToken(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	database, err := store.Connect(t.Context(), w.URL, 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(database.Close)
	s, err := signin.New(signin.Config{Database: database, Asset: func(name string) string { return name }, LookEvery: 10 * time.Millisecond, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan struct{})
	go func() { defer close(ran); s.Run(ctx) }()
	defer func() { stop(); <-ran }()

	begun := make(chan struct{}, 2)
	stream := s.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, ok := person.From(r.Context()); ok {
			begun <- struct{}{}
			<-r.Context().Done()
		}
	}))
	tokens, ended := [2]string{}, [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	all, cut := context.WithCancel(t.Context())
	for i := range tokens {
		if tokens[i], err = signin.NewToken(t.Context(), database, uuid.New(), "a test"); err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequestWithContext(all, http.MethodGet, "/live", nil)
		r.Header.Set("Authorization", "Bearer "+tokens[i])
		go func() {
			defer close(ended[i])
			stream.ServeHTTP(httptest.NewRecorder(), r)
		}()
	}
	for range tokens {
		await(t, begun, "a stream to begin")
	}
	if err := signin.EndToken(t.Context(), database, tokens[0]); err != nil {
		t.Fatal(err)
	}
	await(t, ended[0], "the stream of the revoked token to end")
	select {
	case <-ended[1]:
		t.Error("the stream of the other token has ended, too")
	default:
	}
	cut()
	await(t, ended[1], "the other stream to end with its client")
}

func await(t *testing.T, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-patience.After(time.Minute):
		t.Fatalf("waited in vain for %s", what)
	}
}

// A token that was made for one resource is nobody's elsewhere, and what a tool calls itself is kept
// short and printable.
func TestAudienceAndTool(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	database, err := store.Connect(t.Context(), w.URL, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(database.Close)
	s, err := signin.New(signin.Config{Database: database, Asset: func(name string) string { return name }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	token := w.Text(t, `SELECT token FROM tendril.issue_api_token(gen_random_uuid(), 'a test', '1 hour', '{"audience": "https://trellis.example/mcp"}')`)
	ask := func(ctx context.Context, path, tool string) (p person.Person, ok bool) {
		t.Helper()
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
		r.Header.Set("Authorization", "Bearer "+token)
		if tool != "" {
			r.Header.Set(signin.ToolHeader, tool)
		}
		s.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { p, ok = person.From(r.Context()) })).ServeHTTP(httptest.NewRecorder(), r)
		return p, ok
	}
	for path, want := range map[string]bool{"/mcp": true, "/mcp/x": true, "/mcpx": false, "/api/v1/me": false, "/": false} {
		if _, ok := ask(t.Context(), path, ""); ok != want {
			t.Errorf("%s with a token for /mcp: somebody is known = %v, want %v", path, ok, want)
		}
	}
	// What this process asks itself, for somebody whom it knows, is answered.
	inside := person.With(t.Context(), person.Person{Name: "ada"})
	for tool, want := range map[string]string{"": "", "a client/1": "a client/1", "\x1b[31mred\x00": "red␀", strings.Repeat("x", 300): strings.Repeat("x", 200)} {
		if p, ok := ask(inside, "/api/v1/me", tool); !ok || p.Name != "ada" || p.Tool != want {
			t.Errorf("asked inside by the tool %q = %+v, %v, want the tool %q", tool, p, ok, want)
		}
	}
}
