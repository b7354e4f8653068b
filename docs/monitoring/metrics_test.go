// Package monitoring_test compares the pages, rules and dashboard of this directory with
// the metrics of both programs.
package monitoring_test

import (
	"flag"
	"fmt"
	"maps"
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
	help   string
}

// goldens are the metrics of both programs, which tests beside their code hold
// against what they tell.
var goldens = []string{"../../internal/metrics/testdata/names.golden", "../../internal/controlplane/metrics/testdata/names.golden"}

// known are all metrics by name.
func known(t *testing.T) map[string]metric {
	t.Helper()
	found := map[string]metric{}
	line := regexp.MustCompile(`(?m)^(\w+)\{([\w,]*)\} (\w+) (.+)$`)
	for _, file := range goldens {
		for _, m := range line.FindAllStringSubmatch(read(t, file), -1) {
			var labels []string
			if m[2] != "" {
				labels = strings.Split(m[2], ",")
			}
			slices.Sort(labels)
			found[m[1]] = metric{m[3], labels, m[4]}
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

var update = flag.Bool("update", false, "write the tables of README.md")

// sections are the tables of the README; the first whose pattern fits has a metric.
var sections = []struct {
	mark  string
	names *regexp.Regexp
}{
	{"agent", regexp.MustCompile(`^tendril_`)},
	{"process", regexp.MustCompile(`^trellis_(build_info|http|rpc|viewers|live|reaped|duty|webhook_deliveries_total|database_connection)`)},
	{"database", regexp.MustCompile(`^trellis_`)},
}

// The README has each metric of both programs, with its type, its labels and its help.
func TestReadmeHasEveryMetric(t *testing.T) {
	t.Parallel()
	page, all := read(t, "README.md"), known(t)
	for _, section := range sections {
		table := "| name | type | labels | meaning |\n|---|---|---|---|\n"
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if !section.names.MatchString(name) {
				continue
			}
			labels := make([]string, len(all[name].labels))
			for i, label := range all[name].labels {
				labels[i] = "`" + label + "`"
			}
			table += fmt.Sprintf("| `%s` | %s | %s | %s |\n", name, all[name].kind, strings.Join(labels, ", "), all[name].help)
			delete(all, name)
		}
		before, rest, open := strings.Cut(page, "<!-- "+section.mark+" -->\n")
		old, after, closed := strings.Cut(rest, "<!-- /"+section.mark+" -->\n")
		if !open || !closed {
			t.Fatalf("the README has no table %s", section.mark)
		}
		if old != table && !*update {
			t.Errorf("the table %s is not what the programs have: go test ./docs/monitoring -run Metric -update writes it\n got %s\nwant %s", section.mark, old, table)
		}
		page = before + "<!-- " + section.mark + " -->\n" + table + "<!-- /" + section.mark + " -->\n" + after
	}
	for name := range all {
		t.Errorf("no table has %s", name)
	}
	if *update {
		if err := os.WriteFile("README.md", []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
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
