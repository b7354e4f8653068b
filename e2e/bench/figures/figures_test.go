package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

func recorded(t *testing.T, name string) *measured {
	t.Helper()
	m, err := options{input: filepath.Join("testdata", name)}.measured(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s (go test ./e2e/bench/figures -update writes it)\ngot:\n%s\nwant:\n%s", name, got, want)
	}
}

func listed(t *testing.T) []table {
	t.Helper()
	all, err := tables(list)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func markdown(t *testing.T, m *measured) (text string) {
	t.Helper()
	for _, table := range listed(t) {
		text += table.markdown(m)
	}
	return text
}

func TestTables(t *testing.T) {
	t.Parallel()
	now := recorded(t, "bench.txt")
	golden(t, "tables.md", now.where()+markdown(t, now))
	golden(t, "missed.md", missed(listed(t), now))
	page := now.where()
	for _, table := range onPage(listed(t)) {
		page += table.markdown(now)
	}
	golden(t, "page.md", page)
}

// What is shown as it comes is what came, and the table follows.
func TestRunShowsProgressAndTables(t *testing.T) {
	t.Parallel()
	input, err := os.ReadFile("testdata/bench.txt")
	if err != nil {
		t.Fatal(err)
	}
	var out, progress bytes.Buffer
	if err := run(t.Context(), options{}, bytes.NewReader(input), &out, &progress); err != nil {
		t.Fatal(err)
	}
	if progress.String() != string(input) {
		t.Errorf("progress = %s, want what came in", progress.String())
	}
	if want := "| row inserted → claimed, p50 |"; !strings.Contains(out.String(), want) {
		t.Errorf("output = %s, want %q in it", out.String(), want)
	}
}

// A row is never left out: each is told, measured or not.
func TestEveryRowIsTold(t *testing.T) {
	t.Parallel()
	m, err := read("one", []byte("BenchmarkClaimLatency-2 1 3.5 p50-ms\n"))
	if err != nil {
		t.Fatal(err)
	}
	text := markdown(t, m)
	for _, g := range listed(t) {
		for _, r := range g.rows {
			if strings.Count(text, "| "+r.title+" |") != 1 {
				t.Errorf("%q stands %d times in the tables, want once", r.title, strings.Count(text, "| "+r.title+" |"))
			}
		}
	}
	if !strings.Contains(missed(listed(t), m), "20 provisions at once, 5 slots, 20 new workspaces (≥ 85 % of bare): not measured") {
		t.Errorf("missed = %s, want it to tell of what was not measured", missed(listed(t), m))
	}
}

func TestMalformedLinesAreNotCounted(t *testing.T) {
	t.Parallel()
	var out, progress bytes.Buffer
	input := "cpu: a\nBenchmarkClaimLatency-2 1 3.5 p50-ms\nBenchmarkClaimLatency-2 \tsomebody prints\n" +
		"       1\t 9 p50-ms\nBenchmarkClaimLatency-2 1 x p50-ms\nBenchmarkClaimLatency-2 1 4.5 p50-ms\n"
	if err := run(t.Context(), options{}, strings.NewReader(input), &out, &progress); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "| 4 ms | 3.5…4.5 |") {
		t.Errorf("output = %s, want the median of two rounds", out.String())
	}
	if n := strings.Count(progress.String(), "figures: not counted: standard input:"); n != 2 {
		t.Errorf("progress = %s, want 2 lines told as not counted", progress.String())
	}
}

func TestNothingMeasuredIsAnError(t *testing.T) {
	t.Parallel()
	if _, err := read("x.txt", []byte("FAIL\tbuild failed\n")); err == nil || !strings.Contains(err.Error(), "x.txt has no benchmark's line") {
		t.Errorf("read = %v, want that there is nothing", err)
	}
}

func TestMalformedList(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"a | A | n", "[A]\na | A", "[A]\na | A | n by m", "[A]\na | A | n | > 3", "[A]\na | A | n | <= much"} {
		if _, err := tables(text); err == nil {
			t.Errorf("tables(%q) = nil, want an error", text)
		}
	}
}

// Programs get each figure that was measured, with its bare limit, its rounds and what it should
// reach, and the machine.
func TestFiguresForPrograms(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "bench.json")
	if err := run(t.Context(), options{input: "testdata/bench.txt", json: path}, nil, &bytes.Buffer{}, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	var all struct {
		Machine map[string]string
		Figures []record
	}
	if err := json.Unmarshal([]byte(content(t, path)), &all); err != nil {
		t.Fatal(err)
	}
	if all.Machine["cpu"] == "" {
		t.Errorf("machine = %v, want its processor", all.Machine)
	}
	at := slices.IndexFunc(all.Figures, func(r record) bool { return r.Benchmark == "AgentIdle" && r.Metric == "rss-MB" })
	if at < 0 {
		t.Fatalf("%d figures, want the memory of an idle agent among them", len(all.Figures))
	}
	one := all.Figures[at]
	if one.Bare == nil || one.Compared == nil || one.Comparison != "-" || one.Value.Median < one.Bare.Median || one.Value.Rounds < 2 || len(one.Targets) != 1 || one.Targets[0].Met {
		t.Errorf("the figure is %+v, want it of several rounds, compared, and its target missed", one)
	}
	for _, r := range all.Figures {
		if r.Value.Rounds == 0 || r.Value.Least > r.Value.Median || r.Value.Median > r.Value.Most {
			t.Errorf("%s is %+v, want a median of what was measured", r.Figure, r.Value)
		}
	}
}
