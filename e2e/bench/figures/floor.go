package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
)

// bound is a line of a floor: what a figure, or its ratio to the bare limit of the same
// round, must not fall below or rise above.
//
//	Deploy/warm  p50-ms / bare-p50-ms  <= 1.4
type bound struct {
	bench  string
	metric string
	bare   string // divides the metric, round by round; "" if nothing does
	atMost bool
	limit  float64
}

// figure is what the bound is about, as the floor has it.
func (f bound) figure() string {
	if f.bare == "" {
		return f.metric
	}
	return f.metric + " / " + f.bare
}

func (f bound) String() string {
	return map[bool]string{true: "≤ ", false: "≥ "}[f.atMost] + strconv.FormatFloat(f.limit, 'g', -1, 64)
}

// values are the bound's figure in each round.
func (f bound) values(m *measured) spread {
	return m.compared(f.bench, func(r round) (float64, bool) {
		v, ok := r[f.metric]
		if f.bare == "" {
			return v, ok
		}
		bare, both := r[f.bare]
		return v / bare, ok && both
	})
}

// noise is half of what the rounds differ by.
func (s spread) noise() float64 { return (s[len(s)-1] - s[0]) / 2 }

// breach is by how much a figure is beyond its bound and the noise that this run had; 0 or
// less if it is not.
func (f bound) breach(s spread) float64 {
	by := f.limit - s.median()
	if f.atMost {
		by = -by
	}
	return by - s.noise()
}

// readFloor reads bounds, one a line; # begins a comment.
func readFloor(path string) (all []bound, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the floor: %w", err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		f := bound{bench: words[0]}
		switch {
		case len(words) == 4:
			f.metric = words[1]
		case len(words) == 6 && words[2] == "/":
			f.metric, f.bare = words[1], words[3]
		default:
			return nil, fmt.Errorf("%s, line %d: want BENCHMARK METRIC [/ METRIC] >= or <= LIMIT, not %q", path, n, strings.TrimSpace(line))
		}
		sign := words[len(words)-2]
		f.atMost = sign == "<="
		f.limit, err = strconv.ParseFloat(words[len(words)-1], 64)
		if err != nil || sign != "<=" && sign != ">=" {
			return nil, fmt.Errorf("%s, line %d: want >= or <= and a number at the end, not %q", path, n, strings.TrimSpace(line))
		}
		all = append(all, f)
	}
	return all, nil
}

// checkFloor says how each figure stands beside its bound, and fails if one is beyond it by
// more than the noise of this very run, or was not measured.
func checkFloor(floor []bound, m *measured) (table string, err error) {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "benchmark\tfigure\tbound\tmeasured\tnoise\t") // a strings.Builder does not fail
	var beyond []string
	for _, f := range floor {
		s := f.values(m)
		if len(s) == 0 {
			beyond = append(beyond, f.bench+" "+f.figure()+" was not measured")
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t–\t–\tNOT MEASURED\n", f.bench, f.figure(), f)
			continue
		}
		verdict := "ok"
		if f.breach(s) > 0 {
			verdict = "BEYOND"
			beyond = append(beyond, fmt.Sprintf("%s %s is %.3g (±%.2g), and must be %s", f.bench, f.figure(), s.median(), s.noise(), f))
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%.3g\t±%.2g\t%s\n", f.bench, f.figure(), f, s.median(), s.noise(), verdict)
	}
	_ = w.Flush()
	if len(beyond) > 0 {
		err = fmt.Errorf("beyond the floor: %s", strings.Join(beyond, "; "))
	}
	return b.String(), err
}
