package tools_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/provision"
)

var update = flag.Bool("update", false, "write the session of docs/MCP.md")

const page = "../../../docs/MCP.md"

func readPage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The page has a row for each tool, and says of each whether it only reads.
func TestPageHasEachTool(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kinds := map[string]string{}
	for tool, err := range w.overHTTP(t, w.newToken(t, w.operator, &person.Powers{Approve: true}), "", nil).Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		kinds[tool.Name] = "changes"
		if tool.Annotations.ReadOnlyHint {
			kinds[tool.Name] = "reads"
		}
	}
	told := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| (reads|changes) \\| .+ \\|$").FindAllStringSubmatch(readPage(t), -1) {
		told[row[1]] = row[2]
	}
	if !maps.Equal(kinds, told) {
		t.Errorf("the page tells of %v, want %v", told, kinds)
	}
}

// varying are the parts of a session that differ each time, with what the page has.
var varying = []struct {
	part *regexp.Regexp
	told string
}{
	{regexp.MustCompile(`http://127\.0\.0\.1:\d+`), "https://trellis.example"},
	{regexp.MustCompile(`(/?)data:[0-9a-f]{12}`), "${1}data:5f2a9c1e3b7d"},
	{regexp.MustCompile(`"20\d\d-\d\d-\d\dT[0-9:.]+Z"`), `"2026-11-28T10:00:00Z"`},
	{regexp.MustCompile(`20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC`), "2026-12-05 10:00:00 UTC"},
	{regexp.MustCompile(`[0-9a-f]{64}`), "9f86d081884c7d65…"},
	{regexp.MustCompile(`"name":"[0-9a-f-]{36}"`), `"name":"Ada"`},
	{regexp.MustCompile(`"started_by":"[0-9a-f-]{36}"`), `"started_by":"Ada"`},
}

// TestSessionOfThePage records a session of a scripted client: it finds a template, makes a
// mistake, proposes a deploy, waits for the person's yes and reads what came of it.
func TestSessionOfThePage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Exec(t, "INSERT INTO public.people (org_id, user_id, name, email) VALUES ($1, $2, 'Ada', 'ada@example.com') ON CONFLICT (org_id, user_id) DO UPDATE SET name = 'Ada'", w.Org, w.operator)
	a := w.startAgent(t)
	a.does("demo/hello", outcome{outputs: map[string]provision.Output{"greeting": {Value: json.RawMessage(`"Hello, Ada!"`)}, "key": {Sensitive: true}}})
	s := w.overHTTP(t, w.token, "", nil)
	var text strings.Builder
	says := func(tool string, arguments map[string]any) answer {
		t.Helper()
		given, err := json.Marshal(arguments)
		if err != nil {
			t.Fatal(err)
		}
		got := call(t, s, tool, arguments)
		shown := got.text
		if got.IsError {
			shown = "error: " + shown
		}
		fmt.Fprintf(&text, "> %s %s\n< %s\n", tool, given, shown)
		return got
	}
	says("template", map[string]any{"name": "hello"})
	says("deploy", map[string]any{"template": "hello", "workspace": "demo/hello"})
	made := says("deploy", map[string]any{"template": "hello", "workspace": "demo/hello", "variables": map[string]any{"name": "Ada"}, "wait_seconds": 120})
	plan := says("show_plan", map[string]any{"run": made.number("run")})
	if plan.word("plan_digest") == "" {
		t.Fatalf("show_plan = %s, want a plan that waits", plan.text)
	}
	fmt.Fprintf(&text, "  (Ada approves the plan at the link.)\n")
	w.Exec(t, "SELECT public.approve_provision(id, $2) FROM public.provisions WHERE number = $1", made.number("run"), plan.word("plan_digest"))
	says("wait", map[string]any{"run": made.number("run"), "seconds": 120})
	says("outputs", map[string]any{"workspace": "demo/hello"})

	session := strings.TrimSuffix(text.String(), "\n")
	for _, v := range varying {
		session = v.part.ReplaceAllString(session, v.told)
	}
	session = "<!-- session -->\n```text\n" + session + "\n```\n<!-- /session -->"
	whole := readPage(t)
	begin, end := strings.Index(whole, "<!-- session -->"), strings.Index(whole, "<!-- /session -->")
	if begin < 0 || end < begin {
		t.Fatal("the page has no place for a session")
	}
	told := whole[begin : end+len("<!-- /session -->")]
	switch {
	case told == session:
	case *update:
		if err := os.WriteFile(page, []byte(strings.Replace(whole, told, session, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the page tells another session; run go test ./internal/controlplane/tools -run Session -update\nit was:\n%s\nthe page has:\n%s", session, told)
	}
}

// The tests that the page names are there.
func TestPageNamesTests(t *testing.T) {
	t.Parallel()
	var sources strings.Builder
	for _, dir := range []string{".", "../site", "../../../sql"} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), "_test.go") {
				source, err := os.ReadFile(dir + "/" + e.Name())
				if err != nil {
					t.Fatal(err)
				}
				sources.Write(source)
			}
		}
	}
	named := regexp.MustCompile("`(Test[A-Za-z]+)`").FindAllStringSubmatch(readPage(t), -1)
	if len(named) < 8 {
		t.Fatalf("%d tests are named, want those of each threat", len(named))
	}
	slices.SortFunc(named, func(a, b []string) int { return strings.Compare(a[1], b[1]) })
	for _, n := range named {
		if !strings.Contains(sources.String(), "func "+n[1]+"(") {
			t.Errorf("there is no %s", n[1])
		}
	}
}
