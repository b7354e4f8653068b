package terraform

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
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
		{"start", event("apply_start", "a.b: Creating...", hook(`,"action":"create"`)), toStdout, "\x1b[1ma.b: Creating...\x1b[0m\n"},
		{"progress", event("apply_progress", "a.b: Still creating... [10s elapsed]", hook(`,"action":"create","elapsed_seconds":10`)), toStdout, "\x1b[1ma.b: Still creating... [10s elapsed]\x1b[0m\n"},
		{"errored", event("apply_errored", "a.b: Creation errored after 1s", hook(`,"action":"create"`)), toStderr, "\x1b[1ma.b: Creation errored after 1s\x1b[0m\n"},
		{"provisioner begins", event("provision_start", "a.b: Provisioning with 'local-exec'...", hook(`,"provisioner":"local-exec"`)), toStdout, "\x1b[1ma.b: Provisioning with 'local-exec'...\x1b[0m\n"},
		{"provisioner prints", event("provision_progress", "x", hook(`,"provisioner":"local-exec","output":"one\r\ntwo"`)), toStdout, "a.b (local-exec): one\na.b (local-exec): two\n"},
		{"provisioner prints nothing", event("provision_progress", "x", hook(`,"provisioner":"local-exec","output":""`)), toStdout, "a.b (local-exec): \n"},
		{"provisioner failed", event("provision_errored", "x", hook(`,"provisioner":"local-exec"`)), toStderr, "a.b (local-exec): failed\n"},
		{"provisioner done", event("provision_complete", "x", hook(`,"provisioner":"local-exec"`)), toStdout, ""},
		{"warning", event("diagnostic", "x", `,"diagnostic":{"severity":"warning","summary":"Old","detail":"Use new."}`), toStdout,
			"\x1b[33m╷\x1b[0m\n\x1b[33m│\x1b[0m \x1b[1m\x1b[33mWarning: \x1b[0m\x1b[1mOld\x1b[0m\n\x1b[33m│\x1b[0m \n\x1b[33m│\x1b[0m Use new.\n\x1b[33m╵\x1b[0m\n"},
		{"error with values", event("diagnostic", "x", `,"diagnostic":{"severity":"error","summary":"Bad","detail":"","range":{"filename":"m.tf","start":{"line":7}},"snippet":{"context":null,"code":"x = var.y","start_line":7,"values":[{"traversal":"var.y","statement":"is 3"}]}}`),
			toStderr,
			"\x1b[31m╷\x1b[0m\n\x1b[31m│\x1b[0m \x1b[1m\x1b[31mError: \x1b[0m\x1b[1mBad\x1b[0m\n\x1b[31m│\x1b[0m \n\x1b[31m│\x1b[0m   on m.tf line 7:\n" +
				"\x1b[31m│\x1b[0m    7: x = var.y\n\x1b[31m│\x1b[0m     var.y is 3\n\x1b[31m╵\x1b[0m\n"},
		{"log", strings.Replace(event("log", "careful", ""), `"info"`, `"warn"`, 1), toStderr, "careful\n"},
		{"unknown kind", event("ephemeral_op_start", "a.b: Opening...", ""), toStdout, "a.b: Opening...\n"},
		{"payload of another shape", event("apply_start", "a.b: Creating...", `,"hook":[1]`), toStdout, "a.b: Creating...\n"},
		{"state dump", strings.TrimSuffix(event("log", "Emergency state dump", ""), "}") + `,"state":{"version":4,"outputs":{"p":{"value":"hunter2"}}}}`, toStderr, "Emergency state dump: 49 bytes, not shown\n"},
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
		`{"state":{"version":4,"lineage":"x`: errTorn,
		"plain text\n":                       errNotEvent,
		"":                                   errNotEvent,
		`{"a":1}`:                            errNotEvent,
		`{"a":`:                              errNotEvent,
		`{"@level":"info","@m`:               errTorn,
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

// A program that writes to the engine's output can print what looks like an
// event: what it says is bounded, and of a time that the database takes.
func TestForgedEvent(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"0000-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "yesterday"} {
		long := strings.Repeat("x", 1<<20)
		var told []Event
		r := &Runner{engine: Engine{Kind: Terraform}, out: newOutput(nil, nil)}
		p := &progress{command: r.command("apply", ""), on: func(e Event) { told = append(told, e) }}
		p.line(fmt.Appendf(nil, `{"@level":"info","@message":%q,"@timestamp":%q,"type":"provision_start","hook":{"resource":{"addr":%q},"provisioner":%q}}`, long, at, long, long))
		if len(told) != 1 || told[0].Resource == nil {
			t.Fatalf("events = %v, want 1", told)
		}
		got := *told[0].Resource
		if since := time.Since(got.At); since.Abs() > time.Minute {
			t.Errorf("an event of %s is told as of %s, want now", at, got.At)
		}
		if size := len(got.Address) + len(got.Action) + len(got.Message); size > 4*maxEventText {
			t.Errorf("an event with texts of 1 MB is told with %d bytes, want it bounded", size)
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
		stateDump, "text" + stateDump, stateDump[:len(stateDump)/2], `{"state":null}`, `{"@level":"info","type":"log","state":"text"}`,
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
		r.PrintOutputs(p.applied)
		_ = run.diags.failure(Terraform, "apply", "", nil)
		_, within := splitEvent(raw)
		if _, err := parse(raw); errors.Is(err, errNotEvent) && within == nil && printed.String() != string(raw) {
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

// stateDump is what Terraform 1.11 prints when it can store a state nowhere.
const stateDump = `{"@level":"info","@message":"Emergency state dump","@module":"terraform.ui","@timestamp":"2026-01-02T03:04:05.678900Z",` +
	`"state":{"version":4,"terraform_version":"1.11.4","serial":3,"lineage":"1f","outputs":{"password":{"value":"` + dumped + `","type":"string","sensitive":true}},` +
	`"resources":[{"mode":"managed","type":"terraform_data","name":"a","instances":[{"attributes":{"input":{"value":"` + dumped + `","type":"string"}}}]}],"check_results":null},"type":"log"}`

// dumped is a secret in stateDump.
const dumped = "hunter2-in-the-state"

// FuzzStateDump puts anything before a state that is dumped and cuts it
// anywhere: nothing of the state is ever printed, and where the event is whole
// and a line of its own, or comes after mere text, the state is caught as it is.
func FuzzStateDump(f *testing.F) {
	for _, before := range []string{"", " ", "text ", "text\n", `{"a":1}`, `{"@`, `{"@level":"info","x":`, `{"@level":"info","type":"diagnostic"}`, `[1,`, `"`, "\x00\xff{"} {
		f.Add([]byte(before), uint16(len(stateDump)))
		f.Add([]byte(before), uint16(len(stateDump)/2))
		f.Add([]byte(before), uint16(len(stateDump)-1))
	}
	var event struct {
		State json.RawMessage `json:"state"`
	}
	if err := json.Unmarshal([]byte(stateDump), &event); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, before []byte, cut uint16) {
		var printed strings.Builder
		r := &Runner{engine: Engine{Kind: Terraform}, out: newOutput(&printed, &printed)}
		var told []Event
		p := &progress{command: r.command("apply", ""), on: func(e Event) { told = append(told, e) }, refuse: func(error) {}}
		whole := int(cut) >= len(stateDump)
		for line := range strings.Lines(string(before) + stateDump[:min(int(cut), len(stateDump))] + "\n") {
			p.line([]byte(line))
		}
		failure := p.command.diags.failure(Terraform, "apply", "", nil)
		if said := printed.String() + failure.Message + fmt.Sprint(told); strings.Contains(said, dumped) {
			t.Errorf("after %q the dump cut at %d was shown: %s", before, cut, said)
		}
		if whole && !strings.Contains(string(before), "{") && string(p.applied.State) != string(event.State) {
			t.Errorf("after %q the state is %s, want it as it was dumped", before, p.applied.State)
		}
		if !whole && p.applied.State != nil {
			t.Errorf("half a dump gave the state %s", p.applied.State)
		}
	})
}

func TestHugeStateIsNotHeld(t *testing.T) {
	t.Parallel()
	r := &Runner{engine: Engine{Kind: Terraform}, out: newOutput(nil, nil)}
	p := &progress{command: r.command("apply", "")}
	p.line([]byte(`{"@level":"info","type":"log","state":{"version":4,"x":"` + strings.Repeat("x", MaxState) + `"}}`))
	if got := p.applied; got.State != nil || got.StateBytes <= MaxState {
		t.Errorf("State has %d bytes, StateBytes = %d, want none of it held and its size", len(got.State), got.StateBytes)
	}
}

// An engine that is killed while it prints its state has stored it nowhere.
func TestTornDumpIsALostState(t *testing.T) {
	t.Parallel()
	at := strings.Index(stateDump, `"state"`)
	for name, test := range map[string]struct {
		line string
		lost bool
	}{
		"cut in the state":          {stateDump[:len(stateDump)/2], true},
		"cut before the state":      {stateDump[:at], true},
		"its beginning is missing":  {`{"@` + stateDump[at:len(stateDump)-1], true},
		"behind text":               {"text" + stateDump[:len(stateDump)/2], true},
		"another event that is cut": {uiDone[:len(uiDone)-3], false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &Runner{engine: Engine{Kind: Terraform}, out: newOutput(nil, nil)}
			p := &progress{command: r.command("apply", "")}
			p.line([]byte(test.line + "\n"))
			if got := p.applied; got.State != nil || got.StateBytes > 0 != test.lost {
				t.Errorf("State has %d bytes, StateBytes = %d, want none held and a loss told: %t", len(got.State), got.StateBytes, test.lost)
			}
		})
	}
}
