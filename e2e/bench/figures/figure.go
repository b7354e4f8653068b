package main

import (
	_ "embed"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

//go:embed figures.txt
var list string

// table is a heading of figures.txt, with its lines.
type table struct {
	title string
	rows  []row
	// page leaves out spread, verdict and peer: the page lists what is missed.
	page bool
}

// row is a line of figures.txt.
type row struct {
	title string
	figure
	targets []bound
	peer    string
	page    bool // a star: docs/PERFORMANCE.md shows it
}

// figure is a metric of a benchmark and what it is compared with: another metric
// of the same round, its bare limit. op is "-", "/" or, without one, "".
type figure struct{ bench, metric, op, bare string }

// bound is what a figure must not fall below or rise above: itself, or, if it is
// compared, its difference or ratio.
type bound struct {
	atMost, compared bool
	limit            float64
}

// tables reads figures.txt.
func tables(text string) (all []table, err error) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if line[0] == '[' {
			all = append(all, table{title: strings.Trim(line, "[]")})
			continue
		}
		cells := append(strings.Split(line, " | "), "", "")
		if len(cells) < 5 || len(all) == 0 {
			return nil, fmt.Errorf("want TITLE | BENCHMARK | FIGURE below a heading, not %q", line)
		}
		r := row{peer: cells[4]}
		r.title, r.page = strings.CutPrefix(cells[0], "* ")
		if r.figure, err = parseFigure(cells[1], strings.Fields(cells[2])); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		for target := range strings.SplitSeq(cells[3], ", ") {
			if target == "" {
				continue
			}
			b, err := parseBound(strings.Fields(target))
			if err != nil {
				return nil, fmt.Errorf("%q: %w", line, err)
			}
			r.targets = append(r.targets, b)
		}
		last := &all[len(all)-1]
		last.rows = append(last.rows, r)
	}
	return all, nil
}

// onPage are the tables as docs/PERFORMANCE.md shows them.
func onPage(all []table) (shown []table) {
	for _, t := range all {
		var rows []row
		for _, r := range t.rows {
			if r.page {
				rows = append(rows, r)
			}
		}
		if len(rows) > 0 {
			shown = append(shown, table{title: t.title, rows: rows, page: true})
		}
	}
	return shown
}

// readFloor reads lines as: Deploy/warm  p50-ms / bare-p50-ms  <= 1.4
func readFloor(path string) (all []row, err error) {
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
		b, err := parseBound(words[max(0, len(words)-2):])
		var f figure
		if err == nil {
			f, err = parseFigure(words[0], words[1:max(1, len(words)-2)])
		}
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, n, err)
		}
		b.compared = f.op != ""
		all = append(all, row{figure: f, targets: []bound{b}})
	}
	return all, nil
}

func parseFigure(bench string, words []string) (figure, error) {
	switch {
	case len(words) == 1:
		return figure{bench: bench, metric: words[0]}, nil
	case len(words) == 3 && (words[1] == "/" || words[1] == "-"):
		return figure{bench, words[0], words[1], words[2]}, nil
	}
	return figure{}, fmt.Errorf("want METRIC, or METRIC / or - METRIC, not %q", strings.Join(words, " "))
}

func parseBound(words []string) (b bound, err error) {
	if len(words) != 2 || words[0] != "<=" && words[0] != ">=" {
		return b, fmt.Errorf("want >= or <= and a number, not %q", strings.Join(words, " "))
	}
	b.atMost = words[0] == "<="
	number, percent := strings.CutSuffix(words[1], "%")
	if b.limit, err = strconv.ParseFloat(number, 64); err != nil {
		return b, fmt.Errorf("want a number, not %q", words[1])
	}
	if b.compared = percent || number[0] == '+'; percent {
		b.limit /= 100
	}
	return b, nil
}

func (f figure) String() string { return strings.TrimSpace(f.metric + " " + f.op + " " + f.bare) }

// values are the metric's, one a round.
func (f figure) values(m *measured) spread { return m.each(f.bench, figure{metric: f.metric}) }

// of returns what the bound is about: the metric, or what it is compared by.
func (b bound) of(f figure, m *measured) spread {
	if b.compared {
		return m.each(f.bench, f)
	}
	return f.values(m)
}

// in is what one round has of a figure. A benchmark that measured in pairs has the
// difference of its p50 itself.
func (f figure) in(r map[string]float64) (float64, bool) {
	ours, have := r[f.metric]
	bare, haveBare := r[f.bare]
	switch f.op {
	case "":
		return ours, have
	case "/":
		return ours / bare, have && haveBare
	}
	if over, paired := r["over-ms"]; paired && f.metric == "p50-ms" {
		return over, true
	}
	return ours - bare, have && haveBare
}

// beyond is by how much a figure misses the bound; 0 or less if it does not.
func (b bound) beyond(value float64) float64 {
	if b.atMost {
		return value - b.limit
	}
	return b.limit - value
}

func (b bound) sign() string { return map[bool]string{true: "≤ ", false: "≥ "}[b.atMost] }

// unit is what a figure is counted in: what follows the metric's last hyphen. For how
// many it was counted ("s/1000polls") is for the title to say.
func (f figure) unit() string {
	unit, _, _ := strings.Cut(f.metric[strings.LastIndexByte(f.metric, '-')+1:], "/1000")
	return unit
}

// number writes a number with three digits, and commas between thousands.
func number(v float64) string {
	if v >= 100 || v <= -100 {
		return message.NewPrinter(language.English).Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// with puts the unit behind a number: "3 ms", "3/s".
func (f figure) with(number string) string {
	if unit := f.unit(); strings.HasPrefix(unit, "/") {
		return number + unit
	}
	return number + " " + f.unit()
}

// text writes what a figure is compared by: "83.8 %", "+1.16 ms".
func (f figure) text(compared float64) string {
	if f.op == "/" {
		return number(100*compared) + " %"
	}
	sign := "+"
	if compared < 0 {
		sign = ""
	}
	return f.with(sign + number(compared))
}

// aim is a target in words.
func (r row) aim(b bound) string {
	switch {
	case !b.compared:
		return b.sign() + r.with(number(b.limit))
	case r.op == "/":
		return b.sign() + r.text(b.limit) + " of bare"
	}
	return b.sign() + r.with(number(b.limit)) + " over bare"
}

// miss says by how much a target is missed; "" if it is met.
func (r row) miss(b bound, m *measured) string {
	s := b.of(r.figure, m)
	if len(s) == 0 {
		return "not comparable: no bare limit in this run"
	}
	by := b.beyond(s.median())
	switch {
	case by <= 0:
		return ""
	case b.compared && r.op == "/":
		return "missed by " + number(100*by) + " percentage points"
	case b.limit == 0:
		return "missed by " + r.with(number(by))
	}
	return fmt.Sprintf("missed by %s (%.0f %%)", r.with(number(by)), 100*by/b.limit)
}
