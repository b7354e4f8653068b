package terraform

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestParseAndRender(t *testing.T) {
	t.Parallel()
	event := func(typ, text, rest string) string {
		return fmt.Sprintf(`{"@level":"info","@message":%q,"@module":"terraform.ui","@timestamp":"2026-01-02T03:04:05Z","type":%q%s}`, text, typ, rest)
	}
	hook := func(rest string) string { return `,"hook":{"resource":{"addr":"a.b"}` + rest + `}` }
	tests := []struct {
		name, line string
		sink       int
		want       string
	}{
		{"version", uiVersion, toStdout, ""},
		{"planned change", event("planned_change", "a.b: Plan to create", ""), toStdout, ""},
		{"start", event("apply_start", "a.b: Creating...", hook(`,"action":"create"`)), toStdout, "a.b: Creating...\n"},
		{"progress", event("apply_progress", "a.b: Still creating... [10s elapsed]", hook(`,"action":"create","elapsed_seconds":10`)), toStdout, "a.b: Still creating... [10s elapsed]\n"},
		{"errored", event("apply_errored", "a.b: Creation errored after 1s", hook(`,"action":"create"`)), toStderr, "a.b: Creation errored after 1s\n"},
		{"provisioner begins", event("provision_start", "a.b: Provisioning with 'local-exec'...", hook(`,"provisioner":"local-exec"`)), toStdout, "a.b: Provisioning with 'local-exec'...\n"},
		{"provisioner prints", event("provision_progress", "x", hook(`,"provisioner":"local-exec","output":"one\r\ntwo"`)), toStdout, "a.b (local-exec): one\na.b (local-exec): two\n"},
		{"provisioner prints nothing", event("provision_progress", "x", hook(`,"provisioner":"local-exec","output":""`)), toStdout, "a.b (local-exec): \n"},
		{"provisioner failed", event("provision_errored", "x", hook(`,"provisioner":"local-exec"`)), toStderr, "a.b (local-exec): failed\n"},
		{"provisioner done", event("provision_complete", "x", hook(`,"provisioner":"local-exec"`)), toStdout, ""},
		{"warning", event("diagnostic", "x", `,"diagnostic":{"severity":"warning","summary":"Old","detail":"Use new."}`), toStdout, "\nWarning: Old\n\nUse new.\n"},
		{"error with values", event("diagnostic", "x", `,"diagnostic":{"severity":"error","summary":"Bad","detail":"","range":{"filename":"m.tf","start":{"line":7}},"snippet":{"context":null,"code":"x = var.y","start_line":7,"values":[{"traversal":"var.y","statement":"is 3"}]}}`),
			toStderr, "\nError: Bad\n\n  on m.tf line 7:\n   7: x = var.y\n    var.y is 3\n"},
		{"log", strings.Replace(event("log", "careful", ""), `"info"`, `"warn"`, 1), toStderr, "careful\n"},
		{"unknown kind", event("ephemeral_op_start", "a.b: Opening...", ""), toStdout, "a.b: Opening...\n"},
		{"payload of another shape", event("apply_start", "a.b: Creating...", `,"hook":[1]`), toStdout, "a.b: Creating...\n"},
		{"outputs of another shape", event("outputs", "Outputs: 1", `,"outputs":["hunter2"]`), toStdout, "Outputs: 1\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m, err := parse([]byte(test.line))
			if err != nil {
				t.Fatalf("parse(%s) error = %v, want nil", test.line, err)
			}
			if sink, got := m.render(); sink != test.sink || got != test.want {
				t.Errorf("render(%s) = %d, %q, want %d, %q", test.line, sink, got, test.sink, test.want)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]error{
		"plain text\n":         errNotEvent,
		"":                     errNotEvent,
		`{"a":1}`:              errNotEvent,
		`{"a":`:                errNotEvent,
		`{"@level":"info","@m`: errTorn,
		`{"outputs":{"p":{"sensitive":true,"value":"hun`: errTorn,
		`{"@level":5}`: errTorn,
	} {
		if _, err := parse([]byte(line)); !errors.Is(err, want) {
			t.Errorf("parse(%q) error = %v, want %v", line, err, want)
		}
	}
}

func TestCheckUI(t *testing.T) {
	t.Parallel()
	for version, ok := range map[string]bool{"1.2": true, "1.99": true, "1": true, "": true, "2.0": false, "0.1": false, "10.1": false} {
		if err := checkUI(version); (err == nil) != ok {
			t.Errorf("checkUI(%q) = %v, want accepted %v", version, err, ok)
		}
	}
}

func TestPercent(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ done, total, want int }{{0, 0, 0}, {1, 0, 0}, {1, 3, 33}, {999, 1000, 99}, {3, 3, 100}, {4, 3, 100}} {
		if got := (Event{Done: test.done, Total: test.total}).Percent(); got != test.want {
			t.Errorf("Percent(%d of %d) = %d, want %d", test.done, test.total, got, test.want)
		}
	}
}

// FuzzLine feeds an apply any line: nothing panics, a sensitive value is never
// printed, and what is no event comes through unchanged.
func FuzzLine(f *testing.F) {
	for _, seed := range []string{
		uiVersion, uiDone, "text", "{", `{"@level":"info","type":"diagnostic","diagnostic":null}`,
		`{"@level":"info","type":"apply_complete","hook":{"resource":{"addr":"a.b"},"action":"create","id_value":"x","elapsed_seconds":1}}`,
		`{"@level":"info","type":"provision_progress","hook":{"output":"\u0000\n\n"}}`,
		`{"@level":"info","type":"outputs","outputs":{"a":{"sensitive":true,"value":"hunter2-value"}}}`,
		`{"@level":"info","type":"outputs","outputs":{"a":{"sensitive":false,"value":{"b":[1,null]}}}}`,
		`{"@level":"error","type":"diagnostic","diagnostic":{"severity":"error","summary":"Error acquiring the state lock","detail":"Lock Info:\n  ID: 1\n"}}`,
		`{"@level":"info","type":"planned_change","change":{"action":"replace"}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var printed strings.Builder
		r := &Runner{engine: Engine{Kind: Terraform}, out: newOutput(&printed, &printed)}
		run := r.command("apply", "")
		var told []Event
		p := &progress{command: run, on: func(e Event) { told = append(told, e) }, refuse: func(error) {}}
		p.line(raw)
		_ = run.diags.failure(Terraform, "apply", "", nil)
		if _, err := parse(raw); errors.Is(err, errNotEvent) && printed.String() != string(raw) {
			t.Errorf("line(%q) printed %q, want it unchanged", raw, printed.String())
		}
		for name, output := range p.applied.Outputs {
			if output.Sensitive && output.Value != nil {
				t.Errorf("output %q is sensitive and has the value %s", name, output.Value)
			}
		}
		if _, err := json.Marshal(told); err != nil {
			t.Errorf("events of %q cannot be encoded: %v", raw, err)
		}
	})
}
