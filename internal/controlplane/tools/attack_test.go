package tools_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// Whatever a token that may do little calls, and however it writes the names, it changes nothing
// outside of its workspaces, destroys nothing and touches no run of others.
func TestLittleTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.startAgent(t)
	w.metal(t)
	colleague := w.member(t, "admin")
	began := func(workspace string, operation provision.Operation, more string) int64 {
		made, err := w.site.Database().As(colleague).Deploy(t.Context(), w.Cluster, operation, json.RawMessage(fmt.Sprintf(`{"template_source": {"repo": %q, "version": "v1"}, "terraform_vars": {"name": "x"}, "workspace": %q%s}`, helloRepo, workspace, more)))
		if err != nil {
			t.Fatal(err)
		}
		return made.Number
	}
	applied, inLab := began("prod/app", provision.OperationApply, ""), began("lab/app", provision.OperationApply, "")
	w.awaitStatus(t, applied, "SUCCESS")
	w.awaitStatus(t, inLab, "SUCCESS")
	destroyed := began("prod/old", provision.OperationApply, "")
	w.awaitStatus(t, destroyed, "SUCCESS")
	gone := began("prod/old", provision.OperationDestroy, `, "approval": "always"`)
	w.awaitStatus(t, gone, "AWAITING_APPROVAL")
	digest := w.Text(t, "SELECT plan_digest FROM public.provisions WHERE number = $1", gone)

	no := false
	deep := strings.Repeat("[", 9000) + strings.Repeat("]", 9000)
	for name, powers := range map[string]*person.Powers{
		"reads": {Change: "nothing"}, "proposes in lab": {Workspaces: []string{"lab/*"}}, "applies in lab, destroys nothing": {Workspaces: []string{"lab/*"}, MayApply: []string{"lab/*"}, Destroy: &no},
	} {
		token := w.newToken(t, w.operator, powers)
		s := w.overHTTP(t, token, "", nil)
		before := len(a.sinceApplied(0))
		for _, workspace := range []string{
			"prod/app", "lab", "LAB/app", "lab\u200b/app", "lab/../prod/app", "lab/./../../prod/app", "lab//../prod/app", "prod/app/../../lab/x", " lab/app", "lab/app\nprod/app", "lab/\u0000", "lab/*", "lab%2fapp",
			"l\u0430b/app", "lab\\..\\prod", "servers/x", strings.Repeat("lab/", 100) + "x", "",
		} {
			a := call(t, s, "deploy", map[string]any{"template": "hello", "workspace": workspace, "variables": map[string]any{"name": "evil"}})
			if a.IsError {
				continue
			}
			if got := w.Text(t, "SELECT w.name FROM public.provisions p JOIN public.workspaces w ON w.id = p.workspace_id WHERE p.number = $1", a.number("run")); powers.Change == "nothing" || !strings.HasPrefix(got, "lab/") {
				t.Errorf("%s: a deploy to %q made a run in %q", name, workspace, got)
			}
		}
		for _, c := range []struct {
			tool      string
			arguments map[string]any
		}{
			{"destroy", map[string]any{"workspace": "prod/app"}},
			{"retry", map[string]any{"run": applied}},
			{"cancel", map[string]any{"run": gone}},
			{"approve", map[string]any{"run": gone, "plan_digest": digest}},
			{"draw_up_machines", map[string]any{"template": "hello", "workspace": "prod/app", "machines": []any{map[string]any{"name": "m"}}}},
			{"provision_server", map[string]any{"image_id": "debian-13"}},
			{"provision_server", map[string]any{"image_id": "debian-13", "server_id": "bm-1"}},
			{"deploy", map[string]any{"template": "hello", "workspace": "lab/deep", "variables": map[string]any{"name": json.RawMessage(deep)}}},
			{"deploy", map[string]any{"template": "hello", "workspace": "lab/deep", "variables": map[string]any{"name": json.RawMessage(deep[8500:9500])}}},
			{"deploy", map[string]any{"template": "hello", "workspace": "lab/large", "variables": map[string]any{"name": strings.Repeat("x", 400<<10)}}},
		} {
			a, err := tryCall(t.Context(), s, c.tool, c.arguments)
			if err != nil { // what is no message ends the client's session
				s = w.overHTTP(t, token, "", nil)
			} else if !a.IsError {
				t.Errorf("%s: %s(%.100v) = %s, want it refused", name, c.tool, c.arguments, a.text)
			}
		}
		if powers.Destroy == &no || powers.Change == "nothing" {
			refused(t, s, "destroy", map[string]any{"workspace": "lab/app"}, "This token may not do it")
			refused(t, s, "retry", map[string]any{"run": inLab, "wait_seconds": 0, "workspace": "prod/app"})
		}
		patience.Await(t, "the agent to have nothing to do", func() bool {
			return w.Text(t, "SELECT count(*)::text FROM public.provisions p WHERE p.status IN ('QUEUED', 'PROCESSING') AND NOT EXISTS (SELECT FROM public.provisions o WHERE o.workspace_id = p.workspace_id AND o.status = 'AWAITING_APPROVAL')") == "0"
		})
		for _, workspace := range a.sinceApplied(before) {
			if len(powers.MayApply) == 0 || !strings.HasPrefix(workspace, "lab/") {
				t.Errorf("%s: something was applied in %s", name, workspace)
			}
		}
	}
	if got := w.Text(t, "SELECT coalesce(string_agg(number::text, ' '), '') FROM public.provisions WHERE operation = 'destroy' AND status NOT IN ('AWAITING_APPROVAL', 'QUEUED')"); got != "" {
		t.Errorf("destroys %s have gone on, or were ended", got)
	}
	if got := w.Text(t, "SELECT count(*)::text FROM public.machines WHERE status = 'planned'"); got != "0" {
		t.Errorf("%s machines were drawn up outside of lab", got)
	}
	if strings.Contains(w.logged.String(), "a request failed") {
		t.Errorf("the server has failed: %s", w.logged)
	}
}

// No call escapes the audit by naming an organisation that the database can't even read, or a tool
// that there is not.
func TestCallsOfAnyOrganisationAreAudited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i, org := range []string{"", "acme", "nobody", "\x00", "acme\x00", "\xff\xfe", strings.Repeat("x", 4000), "' OR true --"} {
		tool := "whoami"
		if i%2 == 1 {
			tool = "no_such\x00tool\u202e"
		}
		params := map[string]any{"name": tool, "arguments": map[string]any{}}
		header := []string{"Authorization", "Bearer " + w.token, "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", tool}
		if tool == "whoami" {
			params["_meta"] = map[string]any{"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": map[string]any{}}
		} else { // a header can't carry it: by a session
			begun, _ := w.raw(t, http.MethodPost, "/mcp", strings.NewReader(initialize), "Authorization", "Bearer "+w.token)
			header = []string{"Authorization", "Bearer " + w.token, "Mcp-Session-Id", begun.Header.Get("Mcp-Session-Id"), "Mcp-Protocol-Version", "2025-06-18"}
			w.raw(t, http.MethodPost, "/mcp", strings.NewReader(`{"jsonrpc":"2.0","method":"notifications/initialized"}`), header...)
		}
		text, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
		if err != nil {
			t.Fatal(err)
		}
		response, body := w.raw(t, http.MethodPost, "/mcp?org="+url.QueryEscape(org), strings.NewReader(string(text)), header...)
		if got := w.Text(t, "SELECT count(*)::text FROM public.audit_events WHERE action = 'tool_call' AND actor = $1", w.operator); got != fmt.Sprint(i+1) {
			t.Errorf("after a call of %q in organisation %.10q (%d %.200s) the audit has %s calls, want %d", tool, org, response.StatusCode, body, got, i+1)
		}
	}
}
