package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
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

// The line that "trellis up" prints adds its tools to a client: what a model proposes there waits for
// a person, and the same is at /mcp for those who sign in.
func TestUpOffersTools(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(pgtest.Dir(t), "it is here")
	instance := up(t, dir)
	_, line, found := strings.Cut(instance.said.String(), "claude mcp add tendril -- ")
	if !found {
		t.Fatalf("trellis up says %s, want the line for a client", instance.said.String())
	}
	line, _, _ = strings.Cut(line, "\n")
	server := exec.CommandContext(t.Context(), "sh", "-c", "exec "+line)
	server.Dir = t.TempDir()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "an assistant", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: server}, nil)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	t.Cleanup(func() { _ = session.Close() })
	call := func(tool string, arguments map[string]any) map[string]any {
		t.Helper()
		answer, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
		if err != nil || answer.IsError {
			t.Fatalf("%s = %+v, %v", tool, answer, err)
		}
		fields, _ := answer.StructuredContent.(map[string]any)
		return fields
	}
	made := call("deploy", map[string]any{"template": "hello", "workspace": "demo/model", "variables": map[string]any{"name": "Ada", "pause_seconds": 0}, "wait_seconds": 300})
	if made["status"] != "AWAITING_APPROVAL" {
		t.Errorf("deploy = %v, want its plan to wait for a person", made)
	}
	trellis(t, "approve", "1", "--yes", "--follow", "--data-dir", dir).want(t, "approve", exitOK, "Run 1 succeeded")
	if got := call("outputs", map[string]any{"workspace": "demo/model"}); !strings.Contains(fmt.Sprint(got), "Hello, Ada!") {
		t.Errorf("outputs = %v, want the greeting", got)
	}
	url, _ := made["url"].(string)
	url, _, _ = strings.Cut(url, "/provisions/")
	response, err := http.Post(url+"/mcp", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusUnauthorized || !strings.Contains(response.Header.Get("WWW-Authenticate"), "/.well-known/oauth-protected-resource/mcp") {
		t.Errorf("POST /mcp by nobody = %d %q, want 401 and where to sign in", response.StatusCode, response.Header.Get("WWW-Authenticate"))
	}
}
