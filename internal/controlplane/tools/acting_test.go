package tools_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/provision"
)

// errors say what to do next as a model can follow.
func TestErrorsNameTheNextStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.overHTTP(t, w.token, "", nil)
	form := w.server.URL + "/deploy?step=configure&template=network&version=v1"
	for _, c := range []struct {
		tool      string
		arguments map[string]any
		wants     []string
	}{
		{"template", map[string]any{"name": "helo"}, []string{`There is no template "helo"`, "allowed: hello, network"}},
		{"deploy", map[string]any{"template": "hello", "workspace": "a"}, []string{"variable name is missing; allowed: a text", "Who to greet."}},
		{"deploy", map[string]any{"template": "hello", "workspace": "a", "variables": map[string]any{"name": "x", "times": "many"}}, []string{"variable times does not fit its type; allowed: a number"}},
		{"deploy", map[string]any{"template": "hello", "workspace": "a", "variables": map[string]any{"nam": "x"}}, []string{"variable nam is unknown; allowed: name, times"}},
		{"deploy", map[string]any{"template": "network", "workspace": "a", "variables": map[string]any{"zones": []string{"a"}, "db_password": "hunter2"}}, []string{"db_password is sensitive", form}},
		{"plan", map[string]any{"template": "network", "workspace": "a", "variables": map[string]any{"zones": []string{"a"}}}, []string{"db_password is missing and sensitive", form}},
		{"deploy", map[string]any{"template": "hello", "workspace": "", "variables": map[string]any{"name": "x"}}, []string{"workspace is missing"}},
		{"deploy", map[string]any{"template": "hello", "workspace": "a b", "variables": map[string]any{"name": "x"}}, []string{"This can't be deployed", "workspace"}},
		{"deploy", map[string]any{"template": "hello", "workspace": "a", "cluster": "nowhere", "variables": map[string]any{"name": "x"}}, []string{`There is no cluster "nowhere"`, "allowed: prod"}},
		{"run", map[string]any{"run": 4711}, []string{"Run 4711 was not found", `"runs"`}},
		{"run", map[string]any{}, []string{"run"}},
		{"workspace", map[string]any{"workspace": "none"}, []string{`There is no workspace "none"`}},
		{"destroy", map[string]any{"workspace": "none"}, []string{`There is no workspace "none"`}},
		{"templates", map[string]any{"cursor": "%%%"}, []string{"is none of this list"}},
		{"log", map[string]any{"run": 1, "from": "middle"}, []string{"Run 1 was not found"}},
		{"machines", map[string]any{"status": "flying"}, []string{"Tendril refused this", "planned"}},
		{"provision_server", map[string]any{"image_id": "debian-13"}, []string{"Tendril refused this"}},
		{"draw_up_machines", map[string]any{"template": "hello", "workspace": "a", "machines": []any{}}, []string{"allowed: 1 to 100"}},
		{"draw_up_machines", map[string]any{"template": "network", "workspace": "a", "variables": map[string]any{"db_password": "hunter2"}, "machines": []any{map[string]any{"name": "ada"}}}, []string{"db_password is sensitive"}},
	} {
		text := refused(t, s, c.tool, c.arguments, c.wants...)
		if strings.Contains(text, "hunter2") {
			t.Errorf("%s repeats a secret: %s", c.tool, text)
		}
	}
	if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "no_such_tool"}); err == nil || !strings.Contains(err.Error(), "no_such_tool") {
		t.Errorf("an unknown tool = %v, want it named", err)
	}
	if got := w.Text(t, "SELECT count(*)::text FROM public.provisions"); got != "0" {
		t.Errorf("%s runs were made, want none", got)
	}
	if got := w.Text(t, "SELECT count(*)::text || ' ' || count(DISTINCT detail ->> 'client')::text || ' ' || min(detail ->> 'client') FROM public.audit_events WHERE action = 'tool_call'"); !strings.HasSuffix(got, " 1 scripted/9") || strings.HasPrefix(got, "0") {
		t.Errorf("the audit has %s, want each call with the client's name", got)
	}
	if strings.Contains(w.Text(t, "SELECT coalesce(string_agg(detail::text, ' '), '') FROM public.audit_events"), "hunter2") {
		t.Error("a secret stands in the audit")
	}
}

// What is required and missing is asked of the person, unless it is a secret, by clients that can
// do that: old ones by a request, new ones in the answer.
func TestMissingVariablesAreAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.startAgent(t)
	for way, connect := range w.transports() {
		for _, protocol := range []string{"", "2025-11-25", "2025-06-18"} {
			asked := make(chan *mcp.ElicitParams, 10)
			answer := &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Grace"}}
			s := connect(t, w.token, protocol, &mcp.ClientOptions{ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				asked <- r.Params
				return answer, nil
			}})
			workspace := strings.ReplaceAll("asked/"+way+protocol, "-", "")
			made := ok(t, s, "deploy", map[string]any{"template": "hello", "workspace": workspace})
			form := <-asked
			if text, _ := json.Marshal(form.RequestedSchema); !strings.Contains(string(text), `"name"`) || strings.Contains(string(text), "times") || !strings.Contains(form.Message, "hello") {
				t.Errorf("%s %s: the person is asked %s %s, want the name alone", way, protocol, form.Message, text)
			}
			if got := w.Text(t, "SELECT config_snapshot -> 'terraform_vars' ->> 'name' FROM public.provisions WHERE number = $1", made.number("run")); got != "Grace" {
				t.Errorf("%s %s: the run has name %q, want what the person said", way, protocol, got)
			}
			answer = &mcp.ElicitResult{Action: "decline"}
			refused(t, s, "deploy", map[string]any{"template": "hello", "workspace": workspace}, "did not fill in")
			<-asked
			refused(t, s, "deploy", map[string]any{"template": "network", "workspace": workspace}, "variable zones is missing", "db_password is missing and sensitive")
			if len(asked) > 0 {
				t.Errorf("%s %s: the person is asked for %v, want no list and no secret asked for", way, protocol, <-asked)
			}
		}
	}
}

// A token decides what is listed, what goes on by itself and what is refused.
func TestPowers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.startAgent(t)
	no := false
	for name, c := range map[string]struct {
		powers   *person.Powers
		listed   map[string]bool
		statuses map[string]string // of a deploy, by workspace
	}{
		"default":   {nil, map[string]bool{"deploy": true, "destroy": true, "approve": false}, map[string]string{"lab/a": "AWAITING_APPROVAL"}},
		"read only": {&person.Powers{Change: "nothing"}, map[string]bool{"deploy": false, "plan": false, "cancel": false, "provision_server": false, "approve": false, "log": true}, map[string]string{"lab/b": "may only read"}},
		"may apply": {&person.Powers{MayApply: []string{"lab/*"}}, map[string]bool{"deploy": true, "approve": true}, map[string]string{"lab/c": "SUCCESS", "prod/c": "AWAITING_APPROVAL"}},
		"lab alone": {&person.Powers{Workspaces: []string{"lab/*"}, Destroy: &no}, map[string]bool{"deploy": true, "destroy": false}, map[string]string{"lab/d": "AWAITING_APPROVAL", "prod/d": "only in lab/*"}},
		"approves":  {&person.Powers{Approve: true}, map[string]bool{"approve": true}, nil},
	} {
		s := w.overHTTP(t, w.newToken(t, w.operator, c.powers), "", nil)
		listed := map[string]bool{}
		for tool, err := range s.Tools(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			listed[tool.Name] = true
		}
		for tool, want := range c.listed {
			if listed[tool] != want {
				t.Errorf("%s: %s is listed = %v, want %v", name, tool, listed[tool], want)
			}
		}
		for workspace, want := range c.statuses {
			a := call(t, s, "deploy", map[string]any{"template": "hello", "workspace": workspace, "variables": map[string]any{"name": "Ada"}, "wait_seconds": 60})
			if a.IsError && !strings.Contains(a.text, want) || !a.IsError && a.word("status") != want {
				t.Errorf("%s: deploy to %s = %s, want %s", name, workspace, a.text, want)
			}
		}
		if me := ok(t, s, "whoami", nil); me.word("next") == "" || c.powers != nil && c.powers.Change == "nothing" && me.word("change") != "nothing" {
			t.Errorf("%s: whoami = %s", name, me.text)
		}
	}
}

// A destroy waits although the token may apply; where it may, it approves its own. What others
// have proposed it can't approve, nor cancel.
func TestDestroyWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.startAgent(t)
	s := w.overHTTP(t, w.newToken(t, w.operator, &person.Powers{MayApply: []string{"lab/*"}}), "", nil)
	deploy := map[string]any{"template": "hello", "workspace": "lab/a", "variables": map[string]any{"name": "Ada"}, "wait_seconds": 60}
	if a := ok(t, s, "deploy", deploy); a.word("status") != "SUCCESS" {
		t.Fatalf("deploy = %s, want it applied", a.text)
	}
	a := ok(t, s, "destroy", map[string]any{"workspace": "lab/a", "wait_seconds": 60})
	if a.word("status") != "AWAITING_APPROVAL" || a.word("operation") != "destroy" {
		t.Fatalf("destroy = %s, want its plan to wait", a.text)
	}
	refused(t, s, "approve", map[string]any{"run": a.number("run"), "plan_digest": "yes"}, "show_plan")
	refused(t, s, "approve", map[string]any{"run": a.number("run"), "plan_digest": strings.Repeat("0", 64)}, "Tendril refused")
	if got := ok(t, s, "approve", map[string]any{"run": a.number("run"), "plan_digest": a.word("plan_digest")}); got.word("status") == "AWAITING_APPROVAL" {
		t.Errorf("approve = %s, want the destroy to go on", got.text)
	}
	if got := ok(t, s, "wait", map[string]any{"run": a.number("run")}); got.word("status") != "SUCCESS" {
		t.Errorf("the destroy is %s, want it carried out", got.text)
	}

	others := w.DeploySnapshot(t, `{"template_source": {"repo": "https://git.example/hello", "version": "v1"}, "workspace": "prod/x", "approval": "always"}`)
	number := w.Text(t, "SELECT number::text FROM public.provisions WHERE id = $1", others)
	var n int64
	_, _ = fmt.Sscan(number, &n)
	w.awaitStatus(t, n, "AWAITING_APPROVAL")
	digest := ok(t, s, "show_plan", map[string]any{"run": n}).word("plan_digest")
	refused(t, s, "approve", map[string]any{"run": n, "plan_digest": digest}, "token_may_not", "Do not try another way")
	refused(t, s, "cancel", map[string]any{"run": n}, "token_may_not")
	if got := w.statusOf(t, n); got != "AWAITING_APPROVAL" {
		t.Errorf("another's run is %s, want it left alone", got)
	}
}

// A failed run is retried with what it was asked for, and waits as a deploy; a run of one's own is
// cancelled.
func TestRetryAndCancel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.startAgent(t)
	a.does("lab/r", outcome{fails: true, log: "step 1\nstep 2\nError: no such host\n  on main.tf line 3\n"})
	s := w.overHTTP(t, w.token, "", nil)
	made := ok(t, s, "deploy", map[string]any{"template": "hello", "workspace": "lab/r", "variables": map[string]any{"name": "Ada", "times": json.Number("12345678901234567890")}, "reason": "to see", "wait_seconds": 60})
	if made.word("status") != "FAILED" || !strings.Contains(made.word("error_data"), "no such host") || !strings.Contains(made.word("next"), "first_error") {
		t.Fatalf("deploy = %s, want its failure, and to read the log", made.text)
	}
	if got := ok(t, s, "log", map[string]any{"run": made.number("run"), "from": "first_error"}); !strings.Contains(got.word("log_data"), "step 2\nError: no such host\n  on main.tf line 3") || got.number("first_line") != 1 {
		t.Errorf("log from the first error = %s, want it with what is around it", got.text)
	}
	a.does("lab/r", outcome{})
	again := ok(t, s, "retry", map[string]any{"run": made.number("run"), "wait_seconds": 60})
	if again.word("status") != "AWAITING_APPROVAL" || again.number("run") == made.number("run") {
		t.Errorf("retry = %s, want another run that waits", again.text)
	}
	if got := w.Text(t, "SELECT config_snapshot -> 'terraform_vars' ->> 'times' FROM public.provisions WHERE number = $1", again.number("run")); got != "12345678901234567890" {
		t.Errorf("the retry has times = %s, want every digit", got)
	}
	refused(t, s, "retry", map[string]any{"run": again.number("run")}, "has not ended")
	if got := ok(t, s, "why_waiting", map[string]any{"run": again.number("run")}); !strings.Contains(got.text, "approv") {
		t.Errorf("why_waiting = %s, want the approval", got.text)
	}
	if got := ok(t, s, "cancel", map[string]any{"run": again.number("run")}); got.word("status") != "CANCELLED" {
		t.Errorf("cancel of one's own = %s, want it cancelled", got.text)
	}
	if got := ok(t, s, "cancel", map[string]any{"run": again.number("run")}); !strings.Contains(got.word("next"), "ended before") {
		t.Errorf("cancel once more = %s, want it said that it had ended", got.text)
	}
}

// Machines are drawn up and no run is made.
func TestDrawUpMachines(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.overHTTP(t, w.token, "", nil)
	got := ok(t, s, "draw_up_machines", map[string]any{"template": "hello", "workspace": "lab/m", "machines": []any{map[string]any{"name": "ada", "cores": 2}, map[string]any{"name": "grace"}}})
	if !strings.Contains(got.word("url"), "/machines") {
		t.Errorf("draw_up_machines = %s, want where to provision them", got.text)
	}
	if list := ok(t, s, "machines", map[string]any{"status": "planned"}); !strings.Contains(list.text, `"ada"`) || !strings.Contains(list.text, `"cores":2`) {
		t.Errorf("machines = %s, want ada with 2 cores", list.text)
	}
	if n := w.Text(t, "SELECT count(*)::text FROM public.provisions"); n != "0" {
		t.Errorf("%s runs were made, want none", n)
	}
}

// Outputs that are sensitive have no value, and others are shown whole in parts.
func TestOutputs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	outputs := map[string]provision.Output{"secret": {Sensitive: true}}
	for i := range 300 {
		outputs[fmt.Sprintf("out%03d", i)] = provision.Output{Value: json.RawMessage(fmt.Sprintf(`"%s"`, strings.Repeat("v", 200)))}
	}
	w.startAgent(t).does("lab/o", outcome{outputs: outputs})
	s := w.overHTTP(t, w.newToken(t, w.operator, &person.Powers{MayApply: []string{"lab/*"}}), "", nil)
	made := ok(t, s, "deploy", map[string]any{"template": "hello", "workspace": "lab/o", "variables": map[string]any{"name": "Ada"}, "wait_seconds": 60})
	if made.word("status") != "SUCCESS" {
		t.Fatalf("deploy = %s", made.text)
	}
	found := map[string]any{}
	for offset := int64(0); ; {
		a := ok(t, s, "outputs", map[string]any{"workspace": "lab/o", "offset": offset})
		list, _ := a.fields["outputs"].([]any)
		for _, one := range list {
			entry, _ := one.(map[string]any)
			name, _ := entry["name"].(string)
			found[name] = entry
		}
		if offset = a.number("next_offset"); offset == 0 {
			break
		}
	}
	if len(found) != 301 {
		t.Errorf("%d outputs, want all 301", len(found))
	}
	secret, _ := found["secret"].(map[string]any)
	if secret["sensitive"] != true || secret["value_data"] != nil {
		t.Errorf("secret = %v, want it named without a value", secret)
	}
}
