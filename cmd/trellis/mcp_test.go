package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// A client gets the tools of the chosen server on standard output, where nothing else is said, and
// each request to that server names the client.
func TestMCPOnStandardInput(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	named := map[string]bool{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		named[r.Header.Get("Tendril-Tool")+" "+r.Header.Get("Authorization")] = true
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"id": "5f2a9c1e-3b7d-4a80-9c55-d1e0a8f3b642", "name": "Ada", "orgs": []}`))
	}))
	t.Cleanup(server.Close)
	environ := map[string]string{"TRELLIS_URL": server.URL, "TRELLIS_TOKEN": "trt_test", "TRELLIS_DATA_DIR": t.TempDir()}
	in := strings.Join([]string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"an assistant","version":"2"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"whoami","arguments":{}}}`,
	}, "\n") + "\n"
	var out, said bytes.Buffer
	a := newApp("trellis", func(name string) string { return environ[name] }, strings.NewReader(in), terminal{Writer: &out}, terminal{Writer: &said})
	if code := a.run([]string{"mcp"}); code != 0 {
		t.Fatalf("trellis mcp = %d\n%s%s", code, &out, &said)
	}
	answers := map[int]string{}
	for line := range strings.Lines(out.String()) {
		var answer struct {
			ID     int             `json:"id"`
			Result json.RawMessage `json:"result"`
		}
		if err := json.Unmarshal([]byte(line), &answer); err != nil {
			t.Fatalf("%q on standard output is no answer", line)
		}
		answers[answer.ID] = string(answer.Result)
	}
	if !strings.Contains(answers[1], `"tendril"`) || !strings.Contains(answers[2], `"Ada"`) {
		t.Errorf("the answers are %v, want the server's name and whose token it is", answers)
	}
	if !strings.Contains(said.String(), server.URL) {
		t.Errorf("standard error says %q, want the server named", &said)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(named) != 1 || !named["an-assistant/2 Bearer trt_test"] {
		t.Errorf("the server was asked by %v, want the client's name and the token alone", named)
	}
}

// The line that adds an instance to a client works in any directory.
func TestLineForAClient(t *testing.T) {
	t.Parallel()
	a, _ := testApp(t, "http://127.0.0.1:9")
	a.dataDir = "a dir"
	line := a.addToModel()
	if !strings.HasPrefix(line, "claude mcp add tendril -- /") || !strings.HasSuffix(line, "/a dir'") || !strings.Contains(line, " mcp --data-dir '/") {
		t.Errorf("the line is %s, want absolute paths, quoted", line)
	}
}
