package main

import "testing"

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
	for _, test := range []struct {
		row                        row
		ours, beside, aim, verdict string
	}{
		{row{metric: "p50-ms"}, "60 ms", "", "", ""},
		{row{metric: "p50-ms", targets: []target{atMost(60)}}, "60 ms", "", "≤ 60 ms", "met"},
		{row{metric: "p50-ms", targets: []target{atMost(40)}}, "60 ms", "", "≤ 40 ms", "**missed by 20 ms (50 %)**"},
		{row{metric: "p50-ms", bare: "bare-p50-ms", compare: difference, targets: []target{atMostOver(45), atMost(100)}},
			"60 ms", "+50 ms (+40…+60)", "≤ 45 ms over bare, ≤ 100 ms", "**missed by 5 ms (11 %)** (1 of 2 met)"},
		{row{metric: "p50-ms", bare: "bare-p50-ms", compare: difference, over: "over-ms", targets: []target{atMostOver(45)}},
			"60 ms", "+30 ms (+20…+100)", "≤ 45 ms over bare", "met"},
		{row{metric: "MB/s", bare: "bare-MB/s", compare: ratio, targets: []target{atLeastPart(0.6)}},
			"58 MB/s", "58 % (50…62)", "≥ 60 % of bare", "**missed by 2 percentage points**"},
		{row{metric: "MB/s", bare: "bare-gone", compare: ratio, targets: []target{atLeastPart(0.6)}},
			"58 MB/s", "", "≥ 60 % of bare", "**not comparable: no bare limit in this run**"},
		{row{metric: "claims-/s", targets: []target{atLeast(3500)}}, "3,000/s", "", "≥ 3,500/s", "**missed by 500/s (14 %)**"},
		{row{metric: "gone-ms", targets: []target{atMost(1)}}, "not measured", "", "≤ 1 ms", ""},
		{row{metric: "gone-ms", absent: "no such thing"}, "not measured: no such thing", "", "", ""},
		{row{bench: "Zero", metric: "n", bare: "bare-n", compare: ratio}, "5 n", "", "", ""},
	} {
		r := test.row
		if r.bench == "" {
			r.bench = "A/x=1"
		}
		got := []string{ourCell(r, m, nil), comparedCell(r, m, nil), r.aim(), verdictCell(r, m, nil)}
		for i, want := range []string{test.ours, test.beside, test.aim, test.verdict} {
			if got[i] != want {
				t.Errorf("%+v: cell %d = %q, want %q", r, i, got[i], want)
			}
		}
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{
		0: "0", 0.0123: "0.0123", 0.15: "0.150", 0.996: "1.00", 3.456: "3.46", 9.999: "10.0", 34.56: "34.6", 99.96: "100",
		345.6: "346", 3456: "3,456", 1234567: "1,234,567", -1234: "−1,234", -12.3: "−12.3",
	} {
		if got := plain(v); got != want {
			t.Errorf("plain(%v) = %q, want %q", v, got, want)
		}
	}
}

func TestUnits(t *testing.T) {
	t.Parallel()
	for metric, want := range map[string]string{
		"p50-ms": "ms", "claims-/s": "/s", "MB/s": "MB/s", "bare-MB/s": "MB/s", "cpu-s/1000polls": "s", "core-%": "%", "threads": "threads",
	} {
		if got := unit(metric); got != want {
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
