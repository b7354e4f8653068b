package main

import (
	"bytes"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/perf/benchfmt"
)

// measured is all that an output says.
type measured struct {
	// rounds are by the benchmark's name, without "Benchmark" and the number of CPUs, and each
	// by metric. What one round has was measured in turn, so it is compared within it.
	rounds    map[string][]map[string]float64
	settings  map[string]string // "cpu", "date" …
	malformed []string          // lines that cannot be read
	failed    []string          // what go test says went wrong
}

var failure = regexp.MustCompile(`(?m)^(--- FAIL: .*|FAIL\t.*|panic: .*)$`)

// read takes an output apart. Whatever is not a benchmark's line is passed over:
// what agents print stands between them.
func read(name string, text []byte) (*measured, error) {
	m := &measured{rounds: map[string][]map[string]float64{}, settings: map[string]string{}}
	for _, line := range failure.FindAll(text, -1) {
		m.failed = append(m.failed, strings.Join(strings.Fields(string(line)), " "))
	}
	lines := benchfmt.NewReader(bytes.NewReader(text), name)
	for lines.Scan() {
		switch r := lines.Result().(type) {
		case *benchfmt.SyntaxError:
			m.malformed = append(m.malformed, r.Error())
		case *benchfmt.Result:
			m.add(r)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the benchmarks' output: %w", err)
	}
	if len(m.rounds) == 0 {
		return nil, fmt.Errorf("%s has no benchmark's line", name)
	}
	return m, nil
}

func (m *measured) add(r *benchfmt.Result) {
	for _, c := range r.Config {
		m.settings[c.Key] = string(c.Value)
	}
	base, parts := r.Name.Parts()
	name := string(base)
	for _, p := range parts {
		if p[0] == '/' {
			name += string(p)
		}
	}
	metrics := map[string]float64{}
	for _, v := range r.Values {
		if v.OrigUnit != "" { // the reader makes B of MB
			v.Value, v.Unit = v.OrigValue, v.OrigUnit
		}
		metrics[v.Unit] = v.Value
	}
	m.rounds[name] = append(m.rounds[name], metrics)
}

// each is what the rounds of a benchmark have of a figure.
func (m *measured) each(bench string, f figure) spread {
	var s spread
	for _, r := range m.rounds[bench] {
		if v, ok := f.in(r); ok && !math.IsNaN(v) && !math.IsInf(v, 0) {
			s = append(s, v)
		}
	}
	slices.Sort(s)
	return s
}

// spread is one figure of several rounds, sorted.
type spread []float64

// median is the middle one, or the mean of the two in the middle.
func (s spread) median() float64 {
	half := len(s) / 2
	if len(s)%2 == 1 {
		return s[half]
	}
	return (s[half-1] + s[half]) / 2
}

// ends are the least and the greatest.
func (s spread) ends(write func(float64) string) string {
	least, most := write(s[0]), write(s[len(s)-1])
	if least == most {
		return least
	}
	return least + "…" + most
}
