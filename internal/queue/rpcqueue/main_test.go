package rpcqueue_test

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	token = "tnd_a-token-that-nobody-may-see"
	// tokenHash is its SHA-256.
	tokenHash = "650eb3097853d1346ea033cb6718226887262fe064b6a51e67747d086c50168f"
)

// quiet is for servers that are refused on purpose.
var quiet = log.New(io.Discard, "", 0)

// dial opens a queue; what o leaves out has a default.
func dial(t *testing.T, o rpcqueue.Options) *rpcqueue.Queue {
	t.Helper()
	if o.Token == "" {
		o.Token = token
	}
	if o.Agent.Name == "" {
		o.Agent = queuetest.NewAgent("one")
	}
	q, err := rpcqueue.New(o)
	if err != nil {
		t.Fatalf("rpcqueue.New() = %v, want nil", err)
	}
	t.Cleanup(q.Close)
	return q
}

// serve starts a server and opens a queue on it.
func serve(t *testing.T, handler http.HandlerFunc) *rpcqueue.Queue {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return dial(t, rpcqueue.Options{URL: server.URL})
}

func asError(t *testing.T, err error) *queue.Error {
	t.Helper()
	e, ok := errors.AsType[*queue.Error](err)
	if !ok {
		t.Fatalf("error = %v, want a *queue.Error", err)
	}
	return e
}

// decode reads a request's arguments.
func decode(t *testing.T, r *http.Request, into any) {
	t.Helper()
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		t.Errorf("the request's body: %v", err)
	}
}
