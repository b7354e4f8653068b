package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func readAll(t *testing.T, lines ...string) *measured {
	t.Helper()
	m, err := read("test", []byte(strings.Join(lines, "\n")+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A figure is beyond its floor only by more than the rounds of one run differ.
func TestFloor(t *testing.T) {
	t.Parallel()
	steady := readAll(t, "BenchmarkA-2 1 60 MB/s 100 bare-MB/s 20 rss-MB", "BenchmarkA-2 1 62 MB/s 100 bare-MB/s 21 rss-MB", "BenchmarkA-2 1 61 MB/s 100 bare-MB/s 20.5 rss-MB")
	noisy := readAll(t, "BenchmarkA-2 1 40 MB/s 100 bare-MB/s 20 rss-MB", "BenchmarkA-2 1 80 MB/s 100 bare-MB/s 40 rss-MB", "BenchmarkA-2 1 50 MB/s 100 bare-MB/s 30 rss-MB")
	for _, c := range []struct {
		line   string
		in     *measured
		beyond string
	}{
		{"A MB/s / bare-MB/s >= 0.6", steady, ""},
		{"A MB/s / bare-MB/s >= 0.615", steady, ""}, // within the noise
		{"A MB/s / bare-MB/s >= 0.65", steady, "must be ≥ 0.65"},
		{"A MB/s / bare-MB/s >= 0.65", noisy, ""},
		{"A MB/s / bare-MB/s >= 0.75", noisy, "must be ≥ 0.75"},
		{"A rss-MB <= 20", steady, ""},
		{"A rss-MB <= 19", steady, "must be ≤ 19"},
		{"A MB/s >= 60", steady, ""},
		{"B MB/s >= 60", steady, "was not measured"},
		{"A MB/s / none-MB/s >= 60", steady, "was not measured"},
	} {
		path := filepath.Join(t.TempDir(), "floor.txt")
		if err := os.WriteFile(path, []byte("# a comment\n\n"+c.line+" # why\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		floor, err := readFloor(path)
		if err != nil || len(floor) != 1 {
			t.Fatalf("readFloor(%q) = %v, %v, want one bound", c.line, floor, err)
		}
		table, err := checkFloor(floor, c.in)
		if (err == nil) != (c.beyond == "") || err != nil && !strings.Contains(err.Error(), c.beyond) {
			t.Errorf("checkFloor(%q) = %v, want %q\n%s", c.line, err, c.beyond, table)
		}
	}
}

func TestMalformedFloor(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"A MB/s", "A MB/s > 3", "A MB/s >= much", "A MB/s by bare-MB/s >= 3", "A MB/s / bare-MB/s / other >= 3"} {
		path := filepath.Join(t.TempDir(), "floor.txt")
		if err := os.WriteFile(path, []byte("A MB/s >= 1\n"+line), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readFloor(path); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("readFloor(%q) = %v, want an error that names line 2", line, err)
		}
	}
}

// The floor itself can be read, and each of its figures is one that the tables have.
func TestOwnFloor(t *testing.T) {
	t.Parallel()
	floor, err := readFloor("../floor.txt")
	if err != nil || len(floor) < 8 {
		t.Fatalf("readFloor(floor.txt) = %d bounds, %v, want all", len(floor), err)
	}
	for _, f := range floor {
		known := false
		for _, g := range listed(t) {
			for _, r := range g.rows {
				known = known || r.bench == f.bench && r.metric == f.metric && (f.bare == "" || f.bare == r.bare)
			}
		}
		if !known {
			t.Errorf("floor.txt: no table has %s %s", f.bench, f.figure)
		}
	}
}
