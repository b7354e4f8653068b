package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

func recorded(t *testing.T, name string) *measured {
	t.Helper()
	m, err := readFile(filepath.Join("testdata", name))
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

func TestTables(t *testing.T) {
	t.Parallel()
	now, before := recorded(t, "bench.txt"), recorded(t, "before.txt")
	golden(t, "tables.md", now.where()+tables(groups, now, nil))
	golden(t, "before.md", tables(groups, now, before))
	golden(t, "missed.md", missed(groups, now))
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
	text := tables(groups, m, nil)
	for _, g := range groups {
		for _, r := range g.rows {
			if strings.Count(text, "| "+r.figure+" |") != 1 {
				t.Errorf("%q stands %d times in the tables, want once", r.figure, strings.Count(text, "| "+r.figure+" |"))
			}
		}
	}
	if !strings.Contains(missed(groups, m), "20 provisions at once, 5 slots, 20 new workspaces (≥ 85 % of bare): not measured") {
		t.Errorf("missed = %s, want it to tell of what was not measured", missed(groups, m))
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
	if !strings.Contains(out.String(), "| 4 ms | 3.50…4.50 |") {
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

func TestCharts(t *testing.T) {
	t.Parallel()
	now, before := recorded(t, "bench.txt"), recorded(t, "before.txt")
	for name, draw := range map[string]func(now, before *measured) (string, error){"deploys": deploysChart, "lines": linesChart} {
		for _, earlier := range []*measured{nil, before} {
			svg, err := draw(now, earlier)
			if err != nil {
				t.Fatal(err)
			}
			wellFormed(t, svg)
			for _, want := range []string{"<title id=", "<desc id=", "prefers-color-scheme: dark"} {
				if !strings.Contains(svg, want) {
					t.Errorf("%s lacks %q", name, want)
				}
			}
			for _, no := range []string{"<script", "http://www.w3.org/1999/xlink", "NaN", "Inf", "%!"} {
				if strings.Contains(svg, no) {
					t.Errorf("%s has %q", name, no)
				}
			}
			if strings.Contains(svg, "ms before") != (name == "deploys" && earlier != nil) {
				t.Errorf("%s with %v: bars of before = %t", name, earlier != nil, strings.Contains(svg, "ms before"))
			}
		}
	}
	for _, bench := range []string{cold, steady} {
		some := recorded(t, "bench.txt")
		delete(some.rounds, bench)
		err := errors.Join(chartError(deploysChart(some, nil)), chartError(linesChart(some, nil)))
		if err == nil || !strings.Contains(err.Error(), "no "+bench) {
			t.Errorf("charts without %s = %v, want that it is missing", bench, err)
		}
	}
}

func chartError(_ string, err error) error { return err }

func wellFormed(t *testing.T, svg string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
	}
}
