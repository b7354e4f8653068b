package monitoring_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// dashboard is what of Grafana's format is looked at here.
type dashboard struct {
	UID, Title string
	Panels     []struct {
		ID      int
		Type    string
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ RefID, Expr, LegendFormat string }
	}
	Templating struct {
		List []struct{ Name, Definition string }
	}
}

func theDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	if err := json.Unmarshal([]byte(read(t, "dashboard.json")), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// What the dashboard asks for exists, with those labels, is PromQL, and nearly all
// that there is can be seen on it.
func TestDashboard(t *testing.T) {
	t.Parallel()
	all, seen := known(t), map[string]bool{}
	legend := regexp.MustCompile(`\{\{(\w+)\}\}`)
	ids, at := map[int]bool{}, map[string]string{}
	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	for _, p := range theDashboard(t).Panels {
		if ids[p.ID] {
			t.Errorf("panel %q has the id of another", p.Title)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := at[fmt.Sprint(x, y)]; other != "" || x >= 24 {
					t.Fatalf("panel %q lies over %q, or beyond the edge", p.Title, other)
				}
				at[fmt.Sprint(x, y)] = p.Title
			}
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			for _, name := range check(t, "panel "+p.Title, target.Expr, all) {
				seen[strings.TrimSuffix(name, "_bucket")] = true
			}
			for _, l := range legend.FindAllStringSubmatch(target.LegendFormat, -1) {
				if l[1] != "instance" && !regexp.MustCompile(`\b`+l[1]+`\b`).MatchString(labelsOf(target.Expr, all)) {
					t.Errorf("panel %q: its legend has the label %s, which its metrics have not", p.Title, l[1])
				}
			}
			expression := strings.NewReplacer("$__rate_interval", "5m", "$cluster", ".*").Replace(target.Expr)
			if strings.Contains(expression, "$") {
				t.Errorf("panel %q: there is a variable in %s that the dashboard has not", p.Title, expression)
			}
			fmt.Fprintf(&rules, "  - record: panel:%d:%s\n    expr: %q\n", p.ID, target.RefID, expression)
		}
	}
	for name := range all {
		if !seen[name] {
			t.Errorf("no panel shows %s", name)
		}
	}
	for _, v := range theDashboard(t).Templating.List {
		if v.Definition != "" {
			check(t, "variable "+v.Name, v.Definition, all)
		}
	}
	file := filepath.Join(t.TempDir(), "dashboard.yaml")
	if err := os.WriteFile(file, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
}

// labelsOf are those of all metrics in an expression.
func labelsOf(expression string, all map[string]metric) string {
	var labels []string
	for _, m := range selector.FindAllStringSubmatch(expression, -1) {
		labels = append(labels, all[m[1]].labels...)
		labels = append(labels, all[strings.TrimSuffix(m[1], "_bucket")].labels...)
	}
	return strings.Join(labels, " ")
}
