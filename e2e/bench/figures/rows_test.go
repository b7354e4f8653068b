package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Whoever writes a benchmark without a row, or renames one, is told here and not
// by a table that lacks it.
func TestRowsAndBenchmarksBelongTogether(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("..", "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files with benchmarks: %v", err)
	}
	var benchmarks []string
	for _, file := range files {
		for _, m := range regexp.MustCompile(`(?m)^func Benchmark(\w+)\(`).FindAllStringSubmatch(content(t, file), -1) {
			benchmarks = append(benchmarks, m[1])
		}
	}
	var told []string
	for _, g := range listed(t) {
		for _, r := range g.rows {
			name, _, _ := strings.Cut(r.bench, "/")
			told = append(told, name)
			if !slices.Contains(benchmarks, name) {
				t.Errorf("%q wants Benchmark%s, which is not there", r.title, name)
			}
		}
	}
	for _, name := range benchmarks {
		if !slices.Contains(told, name) {
			t.Errorf("Benchmark%s has no row", name)
		}
	}
}

func TestEnvironmentNamesNoHost(t *testing.T) {
	t.Parallel()
	text := environment(t.Context())
	for line := range strings.Lines(text) {
		if !regexp.MustCompile(`^[a-z]+: [\w .-]+\n$`).MatchString(line) {
			t.Errorf("line %q is no setting of the benchmark format", line)
		}
	}
	if host, err := os.Hostname(); err == nil && len(host) > 3 && strings.Contains(text, host) {
		t.Errorf("environment = %s, which tells the host's name", text)
	}
	m, err := read("test", []byte(text+"BenchmarkA 1 1 n\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Measured on 20", " cores", "Go 1.", "Medians of one run."} {
		if !strings.Contains(m.where(), want) {
			t.Errorf("where = %q, want %q in it", m.where(), want)
		}
	}
}
