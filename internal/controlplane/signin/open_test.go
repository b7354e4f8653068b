package signin_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
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
