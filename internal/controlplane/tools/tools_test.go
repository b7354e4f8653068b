package tools_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// protocols are versions of the protocol that clients speak: the newest, which has no
// sessions, and those before.
var protocols = []string{"", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

// A model finds a template, proposes a deploy, waits, and reads what came of it, over both
// transports and by every version of the protocol.
func TestDeployIsProposed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.startAgent(t)
	for way, connect := range w.transports() {
		for _, protocol := range protocols {
			workspace := strings.ReplaceAll("demo/"+way+protocol, "-", "")
			s := connect(t, w.token, protocol, nil)
			if protocol != "" && s.InitializeResult().ProtocolVersion != protocol {
				t.Errorf("%s: protocol %s, want %s", way, s.InitializeResult().ProtocolVersion, protocol)
			}
			if got := ok(t, s, "templates", nil); !strings.Contains(got.text, `"hello"`) || got.word("next") == "" {
				t.Errorf("%s %s: templates = %s, want hello and the next step", way, protocol, got.text)
			}
			made := ok(t, s, "deploy", map[string]any{"template": "hello", "workspace": workspace, "variables": map[string]any{"name": "Ada"}, "wait_seconds": 60})
			number := made.number("run")
			if made.word("status") != "AWAITING_APPROVAL" || made.word("plan_digest") == "" || !strings.HasSuffix(made.word("url"), "/provisions/"+json.Number(w.Text(t, "SELECT max(number)::text FROM public.provisions")).String()) || !strings.Contains(made.word("next"), made.word("url")) {
				t.Errorf("%s %s: deploy = %s, want AWAITING_APPROVAL with the plan's digest, and the page to approve it", way, protocol, made.text)
			}
			if got := ok(t, s, "show_plan", map[string]any{"run": number}); !strings.Contains(got.text, "create terraform_data.hello") || !strings.Contains(got.text, "secret: (sensitive)") || got.word("plan_digest") != made.word("plan_digest") {
				t.Errorf("%s %s: show_plan = %s, want the change without its secret, and the digest", way, protocol, got.text)
			}
			if got := ok(t, s, "log", map[string]any{"run": number}); !strings.Contains(got.word("log_data"), "hello, Ada") {
				t.Errorf("%s %s: log = %s, want what was printed", way, protocol, got.text)
			}
			if got := w.statusOf(t, number); got != "AWAITING_APPROVAL" {
				t.Errorf("%s %s: run is %s, want it to wait for a person", way, protocol, got)
			}
		}
	}
}

// Each tool says what it takes and answers and what it does to the world.
func TestToolsAreDescribed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.overStdio(t, w.token, "", nil)
	for tool, err := range s.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		if tool.OutputSchema == nil || tool.InputSchema == nil || tool.Annotations == nil || tool.Annotations.DestructiveHint == nil || tool.Annotations.OpenWorldHint == nil || tool.Title == "" {
			t.Errorf("tool %s lacks a schema, a title or hints: %+v", tool.Name, tool)
		}
		if tool.Annotations.ReadOnlyHint && *tool.Annotations.DestructiveHint {
			t.Errorf("tool %s both reads only and destroys", tool.Name)
		}
		if tool.Name == "approve" {
			t.Errorf("approve is listed for a token that was not made for it")
		}
	}
}

var _ = mcp.Implementation{}
