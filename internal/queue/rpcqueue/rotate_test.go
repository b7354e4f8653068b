package rpcqueue_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
	"github.com/tendril-run/tendril/internal/testkit/gatewaytest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

func TestRotatedToken(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	gateway := gatewaytest.Serve(t, w)
	var token atomic.Pointer[string]
	token.Store(&w.Token)
	q := dial(t, rpcqueue.Options{URL: gateway.URL, APIKey: gateway.APIKey, CAFile: gateway.CAFile, Token: w.Token, TokenNow: func() string { return *token.Load() }})
	queuetest.Rotates(t, w, q, func(fresh string) { token.Store(&fresh) })
}

// An answer may have any token in it that there has been.
func TestHidesTheTokenBefore(t *testing.T) {
	t.Parallel()
	now := token
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"code":"PT400","message":"old ` + token + ` ` + tokenHash + ` new tnd_second"}`))
	}))
	t.Cleanup(server.Close)
	q := dial(t, rpcqueue.Options{URL: server.URL, TokenNow: func() string { return now }})
	now = "tnd_second"
	_, err := q.Heartbeat(t.Context(), queue.Beat{})
	if err == nil || strings.Contains(err.Error(), "tnd_") || strings.Contains(err.Error(), tokenHash) || !strings.Contains(err.Error(), "old [token] [token] new [token]") {
		t.Errorf("Heartbeat() = %v, want the tokens hidden", err)
	}
}
