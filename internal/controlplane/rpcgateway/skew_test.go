package rpcgateway_test

import (
	"net/http"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	"github.com/tendril-run/tendril/internal/testkit/recorded"
)

// The first agent's calls, by the names of their parameters, as an agent sends
// them that has no connection to the database.
func TestFirstAgent(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	url := serve(t, rpcgateway.Options{DatabaseURL: w.Login(t, "anon"), Rate: -1})
	queuetest.FirstAgent(t, w, func(t *testing.T, call queuetest.Recorded) []byte {
		t.Helper()
		got := send(t, url, recorded.Request{Path: "/rest/v1/rpc/" + call.Function, Body: call.Body(t)})
		want := http.StatusOK
		if call.Function == "update_provision_status" {
			want = http.StatusNoContent
		}
		if got.status != want {
			t.Fatalf("%s: status = %d, want %d; body %s", call.Function, got.status, want, got.body)
		}
		return got.body
	})
}
