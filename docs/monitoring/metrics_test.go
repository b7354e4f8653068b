// Package monitoring_test holds the documents of this directory against the
// programs: what they speak of is there, and what is there they speak of.
package monitoring_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// metric is one that a program has.
type metric struct {
	kind   string
	labels []string // sorted
}

// goldens are the metrics of both programs, which tests beside their code hold
// against what they tell.
var goldens = []string{"../../internal/metrics/testdata/names.golden", "../../internal/controlplane/metrics/testdata/names.golden"}

// known are all metrics by name.
func known(t *testing.T) map[string]metric {
	t.Helper()
	found := map[string]metric{}
	line := regexp.MustCompile(`(?m)^(\w+)\{([\w,]*)\} (\w+)$`)
	for _, file := range goldens {
		for _, m := range line.FindAllStringSubmatch(read(t, file), -1) {
			var labels []string
			if m[2] != "" {
				labels = strings.Split(m[2], ",")
			}
			slices.Sort(labels)
			found[m[1]] = metric{m[3], labels}
		}
	}
	if len(found) < 40 {
		t.Fatalf("found %d metrics in %v, want all", len(found), goldens)
	}
	return found
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The README has each metric of both programs, with its type and labels, and no
// other.
func TestReadmeHasEveryMetric(t *testing.T) {
	t.Parallel()
	row := regexp.MustCompile("(?m)^\\| `((?:tendril|trellis)_\\w+)` \\| (\\w+) \\|([^|]*)\\| (.+) \\|$")
	label := regexp.MustCompile("`(\\w+)`")
	missing := known(t)
	for _, m := range row.FindAllStringSubmatch(read(t, "README.md"), -1) {
		has, ok := missing[m[1]]
		if !ok {
			t.Errorf("%s is in no program, or twice in the README", m[1])
			continue
		}
		delete(missing, m[1])
		var labels []string
		for _, l := range label.FindAllStringSubmatch(m[3], -1) {
			labels = append(labels, l[1])
		}
		slices.Sort(labels)
		if m[2] != has.kind || !slices.Equal(labels, has.labels) {
			t.Errorf("%s is a %s with labels %v, want a %s with %v", m[1], m[2], labels, has.kind, has.labels)
		}
	}
	for name := range missing {
		t.Errorf("the README lacks %s", name)
	}
}

// foreign are metrics that other programs have, and their labels.
var foreign = map[string][]string{
	"up":                                   nil,
	"kubelet_volume_stats_available_bytes": {"persistentvolumeclaim"},
	"kubelet_volume_stats_capacity_bytes":  {"persistentvolumeclaim"},
}

var (
	selector = regexp.MustCompile(`\b((?:tendril|trellis|kubelet)_\w+|up)\b(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`)
	grouping = regexp.MustCompile(`\b(?:by|on|ignoring|without)\s*\(([^)]*)\)`)
	quoted   = regexp.MustCompile(`"[^"]*"`)
)

// check finds what an expression speaks of that there is not, and returns the names
// that it has.
func check(t *testing.T, where, expression string, known map[string]metric) (names []string) {
	t.Helper()
	// Every scraped series has these; le is a histogram's.
	labels := []string{"instance", "job"}
	for _, m := range selector.FindAllStringSubmatch(quoted.ReplaceAllString(grouping.ReplaceAllString(expression, ""), `""`), -1) {
		name := m[1]
		one, ok := known[name]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, cut := strings.CutSuffix(name, suffix); cut && !ok && known[base].kind == "histogram" {
				one, ok = known[base], true
				labels = append(labels, "le")
			}
		}
		has := one.labels
		if !ok {
			has, ok = foreign[name]
		}
		if !ok {
			t.Errorf("%s: there is no metric %s", where, name)
			continue
		}
		names = append(names, name)
		labels = append(labels, has...)
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(append([]string{"instance", "job"}, has...), l[1]) {
				t.Errorf("%s: %s has no label %s", where, name, l[1])
			}
		}
	}
	if len(names) == 0 {
		t.Errorf("%s: there is no metric in %s", where, expression)
	}
	for _, m := range grouping.FindAllStringSubmatch(expression, -1) {
		for l := range strings.SplitSeq(m[1], ",") {
			if l = strings.TrimSpace(l); l != "" && !slices.Contains(labels, l) {
				t.Errorf("%s: none of its metrics has the label %s", where, l)
			}
		}
	}
	return names
}
