package main

import (
	"strings"
	"testing"
)

func TestVerdicts(t *testing.T) {
	t.Parallel()
	m, err := read("test", []byte(`BenchmarkA/x=1-2 1 70 p50-ms 10 bare-p50-ms 100 over-ms 5000 claims-/s 62 MB/s 100 bare-MB/s
BenchmarkA/x=1-2 1 50 p50-ms 10 bare-p50-ms 20 over-ms 1000 claims-/s 58 MB/s 100 bare-MB/s
BenchmarkA/x=1-2 1 60 p50-ms 10 bare-p50-ms 30 over-ms 3000 claims-/s 50 MB/s 100 bare-MB/s
BenchmarkZero 1 5 n 0 bare-n
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ line, ours, beside, aim, verdict string }{
		{"p50-ms", "60 ms", "", "", ""},
		{"p50-ms | <= 60", "60 ms", "", "≤ 60 ms", "met"},
		{"p50-ms | <= 40", "60 ms", "", "≤ 40 ms", "**missed by 20 ms (50 %)**"},
		{"p50-ms - bare-p50-ms | <= +45", "60 ms", "+30 ms (+20 ms…+100 ms)", "≤ 45 ms over bare", "met"},
		{"MB/s - bare-MB/s | <= +45, >= 60", "58 MB/s", "-42 MB/s (-50 MB/s…-38 MB/s)", "≤ 45 MB/s over bare, ≥ 60 MB/s", "**missed by 2 MB/s (3 %)**"},
		{"MB/s / bare-MB/s | >= 60%", "58 MB/s", "58 % (50 %…62 %)", "≥ 60 % of bare", "**missed by 2 percentage points**"},
		{"MB/s / bare-gone | >= 60%", "58 MB/s", "", "≥ 60 % of bare", "**not comparable: no bare limit in this run**"},
		{"claims-/s | >= 3500", "3,000/s", "", "≥ 3,500/s", "**missed by 500/s (14 %)**"},
		{"gone-ms | <= 1", "not measured", "", "≤ 1 ms", ""},
		{"Zero | n / bare-n", "5 n", "", "", ""},
	} {
		line := test.line
		if !strings.HasPrefix(line, "Zero") {
			line = "A/x=1 | " + line
		}
		all, err := tables("[A]\ntitle | " + line)
		if err != nil {
			t.Fatal(err)
		}
		cells := all[0].rows[0].cells(m)
		got := []string{cells[2], cells[4], cells[5], cells[6]}
		for i, want := range []string{test.ours, test.beside, test.aim, test.verdict} {
			if got[i] != want {
				t.Errorf("%s: cell %d = %q, want %q", line, i, got[i], want)
			}
		}
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{
		0: "0", 0.0123: "0.0123", 0.15: "0.15", 0.9996: "1", 3.456: "3.46", 9.999: "10", 34.56: "34.6", 99.96: "100",
		345.6: "346", 3456: "3,456", 1234567: "1,234,567", -1234: "-1,234", -12.3: "-12.3",
	} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
}

func TestUnits(t *testing.T) {
	t.Parallel()
	for metric, want := range map[string]string{
		"p50-ms": "ms", "claims-/s": "/s", "MB/s": "MB/s", "bare-MB/s": "MB/s", "cpu-s/1000polls": "s", "core-%": "%", "threads": "threads",
	} {
		if got := (figure{metric: metric}).unit(); got != want {
			t.Errorf("unit(%q) = %q, want %q", metric, got, want)
		}
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		of   spread
		want float64
	}{{spread{1}, 1}, {spread{1, 3}, 2}, {spread{1, 2, 9}, 2}} {
		if got := test.of.median(); got != test.want {
			t.Errorf("%v.median() = %v, want %v", test.of, got, test.want)
		}
	}
}
