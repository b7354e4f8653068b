package rpcgateway_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/postgrest"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	"github.com/tendril-run/tendril/internal/testkit/recorded"
)

// jsCall is one call through the official JavaScript client.
type jsCall struct {
	Function string          `json:"function"`
	Args     json.RawMessage `json:"args"`
}

// jsSeen is what the client's user sees of it.
type jsSeen struct {
	Data   json.RawMessage `json:"data"`
	Status int             `json:"status"`
	Error  json.RawMessage `json:"error"`
}

// javaScript runs calls through @supabase/postgrest-js, which `make deps` installs.
func javaScript(t *testing.T, url, key string, calls []jsCall) []jsSeen {
	t.Helper()
	modules := pgtest.Tool(t, "postgrest-js/node_modules")
	input, err := json.Marshal(map[string]any{"url": url, "key": key, "calls": calls})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", "testdata/postgrest-js/client.cjs")
	cmd.Env = append(os.Environ(), "NODE_PATH="+modules)
	cmd.Stdin = bytes.NewReader(input)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("node: %v; run `make deps`\n%s", err, &stderr)
	}
	var seen []jsSeen
	if err := json.Unmarshal(out, &seen); err != nil || len(seen) != len(calls) {
		t.Fatalf("%d answers for %d calls: %v\n%s", len(seen), len(calls), err, out)
	}
	return seen
}

// An agent's whole story, told by Supabase's own client: data, status, and
// errors with their code, message, details and hint.
func TestOfficialJavaScriptClient(t *testing.T) {
	t.Parallel()
	exchanges, world := recorded.Agent(t)
	db := pgtest.New(t, queuetest.Migrated)
	mustExec(t, db.Conn(t), world)
	const key = "sb_publishable_test"
	url := serve(t, rpcgateway.Options{DatabaseURL: db.URL, APIKey: key})
	calls := make([]jsCall, len(exchanges))
	for i, e := range exchanges {
		function, ok := postgrest.FunctionOf(e.Request.Path)
		if !ok {
			t.Fatalf("%q calls no function", e.Name)
		}
		calls[i] = jsCall{function, e.Request.Body}
	}
	for i, seen := range javaScript(t, url, key, calls) {
		e := exchanges[i]
		want := today(e.Response.Body)
		got, other := seen.Data, seen.Error
		if e.Response.Status >= 400 {
			got, other = seen.Error, seen.Data
		}
		if want == nil {
			want = []byte("null")
		}
		if seen.Status != e.Response.Status || string(other) != "null" {
			t.Errorf("%s: status = %d, data = %s, error = %s, want status %d", e.Name, seen.Status, seen.Data, seen.Error, e.Response.Status)
		}
		if err := recorded.Same(got, want); err != nil {
			t.Errorf("%s: %v", e.Name, err)
		}
	}
}

// What the client's user sees where no call gets as far as a function.
func TestOfficialJavaScriptClientIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, queuetest.Migrated)
	url := serve(t, rpcgateway.Options{DatabaseURL: db.URL, APIKey: "sb_publishable_test"})
	call := []jsCall{{"agent_heartbeat", []byte("{}")}}
	for key, want := range map[string]string{"": "No API key found in request", "wrong": "Invalid API key"} {
		seen := javaScript(t, url, key, call)[0]
		contains(t, "error", string(seen.Error), want)
		if seen.Status != 401 {
			t.Errorf("status with the key %q = %d, want 401", key, seen.Status)
		}
	}
	seen := javaScript(t, url, "sb_publishable_test", []jsCall{{"create_cluster", []byte(`{"p_name": "mine"}`)}})[0]
	contains(t, "error", string(seen.Error), `"code":"PGRST202"`)
	if seen.Status != 404 {
		t.Errorf("status of a function for people = %d, want 404", seen.Status)
	}
}
