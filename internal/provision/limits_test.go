package provision

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestKeysThatBeginAlikeStayTwo(t *testing.T) {
	t.Parallel()
	same := strings.Repeat("🌱", 3000)
	a, b := Key(same+"a"), Key(same+"b")
	for _, key := range []string{a, b} {
		if n := utf8.RuneCountInString(key); n != MaxAddress || len(key) > 2704-300 || !utf8.ValidString(key) {
			t.Errorf("a key has %d characters and %d bytes, want %d and what fits into an index", n, len(key), MaxAddress)
		}
	}
	if a == b {
		t.Error("two long keys that begin alike are one")
	}
	for _, short := range []string{"", "aws_instance.a", strings.Repeat("é", MaxAddress)} {
		if got := Key(short); got != short {
			t.Errorf("Key(%q) = %q, want it as it is", short, got)
		}
	}
}

func TestValuesThatFit(t *testing.T) {
	t.Parallel()
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for in, want := range map[string]string{
		"1e400": "", "1e399": "1e399", "-1E+500": "", "1e-500": "", "0e-16383": "", "0e99999999999999999999": "", "1e131071": "", "0": "0", "-1.5e3": "-1.5e3",
		`{"a":[1,{"b":1e500}]}`: "", `"1e500"`: `"1e500"`, `{"1e500":"[[["}`: `{"1e500":"[[["}`,
		deep(MaxNesting): deep(MaxNesting), deep(MaxNesting + 1): "",
		`"\ud800"`: "\"\ufffd\"", `"\udc00x"`: "\"\ufffdx\"", `"\ud83c\udf31"`: `"\ud83c\udf31"`, `"\\ud800"`: `"\\ud800"`, `["\ud800",1.10]`: "[\"\ufffd\",1.10]",
		`"\"[\\"`: `"\"[\\"`, `true`: `true`,
	} {
		got, ok := fitJSON(json.RawMessage(in))
		if string(got) != want || ok != (want != "") {
			t.Errorf("fitJSON(%.60s) = %.60s, %v, want %.60s", in, got, ok, want)
		}
	}
}

func TestFitLeavesWhatItWasGiven(t *testing.T) {
	t.Parallel()
	at, odd, percent := time.Unix(1e9, 0), time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC), 300
	long := strings.Repeat("x", 5000)
	d := Detail{Percent: &percent, Events: []Event{{Address: long, At: odd}}, Resources: []Resource{{Address: long}},
		Plan:    &PlanSummary{Resources: []PlannedChange{{Address: long, Attributes: []AttributeChange{{Before: json.RawMessage("1e500"), After: json.RawMessage("1")}}}}},
		Outputs: map[string]Output{"vast": {Value: json.RawMessage("1e500")}}}
	got := d.Fit(at)
	change := got.Plan.Resources[0]
	if *got.Percent != 100 || got.Events[0].At != at || len(got.Events[0].Address) >= 5000 || len(got.Resources[0].Address) >= 5000 ||
		!change.Attributes[0].Long || change.Attributes[0].Before != nil || string(change.Attributes[0].After) != "1" || !got.Outputs["vast"].Omitted {
		t.Errorf("Fit() = %+v", got)
	}
	if *d.Percent != 300 || d.Events[0].At != odd || d.Events[0].Address != long || d.Plan.Resources[0].Attributes[0].Before == nil || d.Outputs["vast"].Omitted {
		t.Errorf("what was given has changed: %+v", d)
	}
}

// A template's file is whole, or is left out.
func TestFitTemplateFile(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]bool{"title = 1": true, strings.Repeat("x", MaxTemplateFile): true, strings.Repeat("x", MaxTemplateFile+1): false, "a\x00b": false, "a\xff": false} {
		if got := (Detail{About: &About{File: file}}).Fit(time.Now()).About.File; got != map[bool]string{true: file}[want] {
			t.Errorf("Fit() of a file of %d bytes leaves %d", len(file), len(got))
		}
	}
}

// What is said of a machine fits into its row.
func TestFitMachine(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ü", 5000)
	m := Detail{Machines: []Machine{{
		Name: long, Pool: long, Node: long, ExternalID: long, SSHUser: long, Image: long, Address: long,
		IPAddresses: []string{"10.0.0.1", long, "10.0.0.2"}, Labels: map[string]string{"a": long, "b": long},
	}}}.Fit(time.Now()).Machines[0]
	for _, text := range []string{m.Pool, m.Node, m.ExternalID, m.SSHUser, m.Image, m.Address} {
		if length := utf8.RuneCountInString(text); length != MaxAddress {
			t.Errorf("a text of a machine has %d characters, want %d", length, MaxAddress)
		}
	}
	if utf8.RuneCountInString(m.Name) != MaxMachineName || len(m.IPAddresses) != 1 || m.Labels != nil {
		t.Errorf("Fit() = a name of %d bytes, %d addresses and %d labels, want what fits", len(m.Name), len(m.IPAddresses), len(m.Labels))
	}
}
