package executor_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

// A template's own, partial backend is completed by the agent's configuration,
// with the workspace's id in it; the workspace is not bound to this agent.
func TestTemplatesBackendIsCompleted(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	states := map[string][]byte{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch r.Method {
		case http.MethodPost:
			states[r.URL.Path], _ = io.ReadAll(r.Body)
		case http.MethodGet:
			if states[r.URL.Path] == nil {
				http.NotFound(w, r)
				return
			}
			_, _ = w.Write(states[r.URL.Path])
		}
	}))
	t.Cleanup(server.Close)

	s := newSite(t)
	s.job.Settings.State = job.State{Config: map[string]map[string]string{"http": {"address": server.URL + "/{workspace_id}"}}}
	s.template(map[string]string{"main.tf": "terraform {\n  backend \"http\" {}\n}\n" + hello}, map[string]any{"name": "world"})
	got, c := s.run()
	wantEnd(t, got, provision.Success, "")
	if last(c, func(d provision.Detail) bool { return d.LocalState }) {
		t.Error("the run claims local state, want a shared one")
	}
	mu.Lock()
	state := string(states["/"+s.job.Assignment.WorkspaceID.String()])
	mu.Unlock()
	if len(states) != 1 || !strings.Contains(state, "terraform_data") {
		t.Errorf("states = %d, that of the workspace %d bytes; want one, keyed by the workspace's id", len(states), len(state))
	}
	if got, c = s.run(); got.Status != provision.Success || !strings.Contains(c.text(), "No changes") {
		t.Errorf("second run = %s, want it to find the state of the first", got.Status)
	}
}
