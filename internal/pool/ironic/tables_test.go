package ironic

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

// tables are those of docs/MACHINES.md, as the code has them.
func tables() map[string][]string {
	var states, answers, errors []string
	percent := func(s stage) string {
		if s.Percent == 0 {
			return "–"
		}
		return fmt.Sprint(s.Percent, " %")
	}
	or := func(text string) string {
		if text == "" {
			return "–"
		}
		return text
	}
	for _, s := range stages {
		states = append(states, fmt.Sprintf("| `%s` | %s | %s | %s |", s.State, s.Label, percent(s), or(s.Do)))
	}
	for _, c := range append(slices.Clone(classes), classCertificate) {
		tried := "no"
		if c.tried != "" {
			tried = "for " + c.tried
		}
		answers = append(answers, fmt.Sprintf("| %s | %s | %s |", c.name, tried, capital(c.does)))
	}
	for _, f := range faults {
		code := "–"
		if f.code != "" {
			code = "`" + string(f.code) + "`"
		}
		errors = append(errors, fmt.Sprintf("| %s | %s | %s | %s |", f.name, capital(f.happens), code, capital(f.does)))
	}
	return map[string][]string{
		"| state | what it means | of a deployment | what you do |":      states,
		"| answer | tried again | what you do |":                         answers,
		"| what Ironic says of the server | then | code | what you do |": errors,
	}
}

// The page has the tables of the code, row by row.
func TestDocumentedTables(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/MACHINES.md")
	if err != nil {
		t.Fatal(err)
	}
	for head, want := range tables() {
		_, after, found := strings.Cut(string(page), head+"\n")
		_, after, _ = strings.Cut(after, "\n") // the line below the head
		table, _, _ := strings.Cut(after, "\n\n")
		if got := strings.Split(table, "\n"); !found || !slices.Equal(got, want) {
			t.Errorf("docs/MACHINES.md: below %q it has\n%s\nwant\n%s", head, table, strings.Join(want, "\n"))
		}
	}
}

// Each row of what Ironic says of a server is that of texts which Ironic really writes.
func TestFaults(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"The deploying state can't be resumed by conductor localhost. Moving to fail state.":                                                                                                 "The conductor ended during the deployment",
		"Failed to prepare to deploy: Validation of image href http://127.0.0.1/i.raw failed, reason: HTTPConnectionPool(host='127.0.0.1', port=80): Max retries exceeded":                   "The image can't be fetched, or differs from its checksum",
		"Deploy step deploy.write_image failed on node 1. Image failed to verify against checksum. location: http://x/i.raw; image ID: /tmp/i; image checksum: a; verification checksum: b":  "The image can't be fetched, or differs from its checksum",
		"Failed to prepare to deploy: Image 3f could not be found.":                                                                                                                          "The image can't be fetched, or differs from its checksum",
		"Redfish exception occurred. Error: The attribute redfish_password: HTTP POST https://bmc/redfish/v1/SessionService/Sessions returned code 401. Base.1.0.GeneralError: unauthorized": "The BMC refuses its credentials",
		"During sync_power_state, max retries exceeded for node 1, node state None does not match expected state 'power on'. Error: IPMI call failed: power status.":                         "The BMC can't be reached, or the power can't be switched",
		"Failed to change power state to 'power on' by 'rebooting': Redfish connection failed":                                                                                               "The BMC can't be reached, or the power can't be switched",
		"Timeout reached while waiting for callback for node 1":                                                                                                                              "The server does not call back in time",
		"Deployment was aborted by user":                                   "Somebody ended the deployment",
		"Deploy step bios.apply_configuration failed: unknown setting Foo": "A deploy or clean step fails",
		"Unable to cope": "Any other error",
		"":               "Any other error",
	} {
		if got := faultIn(text); got.name != want {
			t.Errorf("faultIn(%q) = %q, want %q", text, got.name, want)
		}
	}
	for _, f := range faults {
		if f.code != "" && !slices.Contains(provision.Codes, f.code) {
			t.Errorf("%s: there is no code %s", f.name, f.code)
		}
	}
}

// States are told in words, once each, and a deployment's percent never goes back on its way.
func TestStages(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, s := range stages {
		if seen[s.State] || s.Label == "" || s.Label != capital(s.Label) || s.failed && s.Do == "" || s.ends == (s.limit > 0) {
			t.Errorf("%+v is told twice, without words, without what to do, or has a limit for no reason", s)
		}
		seen[s.State] = true
	}
	if s := stageOf("a state of the future"); s.Label == "" || s.limit == 0 {
		t.Errorf("an unknown state is %+v", s)
	}
	index := func(n int) *int { return &n }
	deploying := func(step string, at *int, of int) *node {
		n := &node{ProvisionState: "deploying"}
		if step != "" {
			n.DeployStep = map[string]any{"step": step}
		}
		n.Internal.Index = at
		for range of {
			n.Internal.Steps = append(n.Internal.Steps, []byte("{}"))
		}
		return n
	}
	last := 0
	for i, at := range []struct {
		n    *node
		back bool
		want int
	}{
		{&node{ProvisionState: "available"}, false, 2},
		{deploying("", nil, 0), false, 10},
		{&node{ProvisionState: "wait call-back"}, false, 30},
		{deploying("", nil, 0), true, 40},
		{deploying("write_image", index(0), 4), true, 40},
		{deploying("prepare_instance", index(2), 4), true, 69},
		{deploying("boot", index(9), 4), true, 99},
		{&node{ProvisionState: "active"}, true, 100},
	} {
		got := percent(at.n, at.back)
		if got != at.want || got < last {
			t.Errorf("%d: percent = %d after %d, want %d", i, got, last, at.want)
		}
		last = got
	}
}
