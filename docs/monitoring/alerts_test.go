package monitoring_test

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/tendril-run/tendril/internal/provision"
)

type alert struct {
	Alert, Expr, For string
	Labels           map[string]string
	Annotations      map[string]string
}

func alerts(t *testing.T) (all []alert) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []alert } }
	if err := yaml.Unmarshal([]byte(read(t, "alerts.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) < 20 {
		t.Fatalf("found %d alerts, want all", len(all))
	}
	return all
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "promtool", args...)
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s(scripts/test-deps.sh installs it)", strings.Join(args, " "), err, out)
	}
}

// The rules are right in themselves, and fire when they should and not else.
func TestPromtoolAcceptsTheAlerts(t *testing.T) {
	t.Parallel()
	promtool(t, "check", "rules", "alerts.yaml")
	promtool(t, "test", "rules", "alerts_test.yaml")
}

// Each alert speaks of metrics that there are, says what is wrong in a sentence,
// how urgent it is, and where it stands what to do.
func TestAlertsCanBeActedOn(t *testing.T) {
	t.Parallel()
	all, tests, pages := known(t), read(t, "alerts_test.yaml"), read(t, "../ALERTS.md")
	codes := regexp.MustCompile(`code=~?"([a-z_|]+)"`)
	for _, a := range alerts(t) {
		check(t, a.Alert, a.Expr, all)
		if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) {
			t.Errorf("%s: severity %q", a.Alert, a.Labels["severity"])
		}
		if s := a.Annotations["summary"]; len(s) < 30 || len(s) > 220 || !strings.HasSuffix(s, ".") && !strings.HasSuffix(s, "?") {
			t.Errorf("%s: its summary is %q, want a sentence", a.Alert, s)
		}
		if want := "docs/ALERTS.md#" + strings.ToLower(a.Alert); a.Annotations["runbook"] != want || !strings.Contains(pages, "\n## "+a.Alert+"\n") {
			t.Errorf("%s: its runbook is %s, want %s, and that heading there", a.Alert, a.Annotations["runbook"], want)
		}
		if !strings.Contains(tests, "alertname: "+a.Alert+"\n        exp_alerts:") || !regexp.MustCompile(`alertname: `+a.Alert+"\n(      -|  -|$)").MatchString(tests) {
			t.Errorf("%s: no test has it fire, or none has it be silent", a.Alert)
		}
		for _, m := range codes.FindAllStringSubmatch(a.Expr, -1) {
			for code := range strings.SplitSeq(m[1], "|") {
				if !slices.Contains(provision.Codes, provision.Code(code)) {
					t.Errorf("%s: there is no code %s", a.Alert, code)
				}
			}
		}
	}
}
