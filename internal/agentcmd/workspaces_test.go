package agentcmd

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/agent"
)

const devID, prodID = "0b6ff0b1-4a3c-4c39-9f64-5f6f6f0b5a11", "7d2c3a8e-2f0e-4d0a-8f4b-0a4b7b1f9c22"

// What an operator sees of the workspaces that an agent knows, and says of those that
// it refuses.
func TestWorkspaces(t *testing.T) {
	t.Parallel()
	dir, digest := t.TempDir(), strings.Repeat("ab", 32)
	run := func(want int, args ...string) string {
		t.Helper()
		var out bytes.Buffer
		if code := Main(nil, append(args, "--data-dir", dir), &out, &out); code != want {
			t.Errorf("tendril %q = %d, want %d:\n%s", args, code, want, out.String())
		}
		return out.String()
	}
	says := func(got string, words ...string) {
		t.Helper()
		for _, word := range words {
			if !strings.Contains(got, word) {
				t.Errorf("%q is not in:\n%s", word, got)
			}
		}
	}
	says(run(ExitFailure, "workspaces"), dir+" is no agent's data directory")
	says(run(ExitFailure, "workspaces", "accept", devID, "--name", "prod"), dir+" is no agent's data directory")
	if err := os.Mkdir(filepath.Join(dir, "states"), 0o700); err != nil {
		t.Fatal(err)
	}
	says(run(ExitOK, "workspaces"), "has run no workspace yet")
	if got := run(ExitOK, "workspaces", "-o", "json"); strings.TrimSpace(got) != "[]" {
		t.Errorf("none as JSON = %q, want []", got)
	}
	for id, content := range map[string]string{
		devID: `{"name": "dev/x", "version": 7, "digest": "` + digest + `"}`, prodID: `{"name": "prod"}`,
		"name-" + digest: prodID, "11111111-1111-4111-8111-111111111111": "{",
	} {
		if err := os.WriteFile(filepath.Join(dir, "states", id), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	says(run(ExitOK, "workspaces"), "dev/x", devID, "7", digest[:12], "prod", prodID, "? (", "cannot be read")

	// Nothing is accepted that is not said whole.
	for _, args := range [][]string{
		{}, {devID}, {"dev/x", "--name", "prod"}, {"00000000-0000-0000-0000-000000000000", "--name", "prod"}, {devID, "--name", "prod/"},
		{devID, "--name", "a; b"}, {devID, "--name", "prod", "--state", "7"}, {devID, prodID, "--name", "prod"}, {devID, "--name", "prod", "--state", digest[:63] + "X"},
	} {
		run(ExitUsage, append([]string{"workspaces", "accept"}, args...)...)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "states", "*.accepted")); err != nil || len(left) > 0 {
		t.Errorf("what was refused is accepted: %q, %v", left, err)
	}

	says(run(ExitOK, "workspaces", "accept", devID, "--name", "prod", "--state", digest),
		"workspace "+devID+" is called prod", "knew it as dev/x", "as workspace "+prodID+"'s", "gives up state version 7", "goes on from the state "+digest[:12])
	says(run(ExitOK, "workspaces"), "name prod, state "+digest[:12])
	says(run(ExitOK, "workspaces", "accept", devID, "--name", "other", "--state", "none"), "begin without a state")
	var all []agent.KnownWorkspace
	if err := json.Unmarshal([]byte(run(ExitOK, "workspaces", "-o", "json")), &all); err != nil || len(all) != 3 {
		t.Fatalf("the list as JSON = %v, %v, want three", all, err)
	}
	for _, w := range all {
		if w.ID.String() == devID && (w.Accepted == nil || *w.Accepted != agent.Acceptance{Name: "other", State: agent.NoState}) {
			t.Errorf("accepted = %+v, want the last answer", w.Accepted)
		}
	}
}

// Without --data-dir the agent's own configuration says where its notes are.
func TestWorkspacesByConfiguration(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "states"), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "agent.toml")
	if err := os.WriteFile(file, []byte("data_dir = \""+dir+"\"\n[queue]\nurl = \"postgres://a@127.0.0.1/b\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := tendril(t, []string{"TENDRIL_API_TOKEN=tnd_" + strings.Repeat("x", 43)}, "workspaces", "-c", file); code != ExitOK || !strings.Contains(out, "no workspace yet") {
		t.Errorf("tendril workspaces = %d, %q", code, out)
	}
	if out, code := tendril(t, nil, "workspaces"); code != ExitUsage || !strings.Contains(out, "--data-dir") {
		t.Errorf("tendril workspaces of no agent = %d, %q, want what to give", code, out)
	}
}
