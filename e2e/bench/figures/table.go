package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/printable"
)

const notMeasured = "not measured"

// cells are a figure's, below the headings.
func (r row) cells(m *measured) []string {
	ours, compared := r.values(m), m.each(r.bench, r.figure)
	var bare, spread, beside string
	if s := m.each(r.bench, figure{metric: r.bare}); len(s) > 0 {
		bare = r.with(number(s.median()))
	}
	if len(ours) > 1 {
		spread = ours.ends(number)
	}
	if len(compared) > 0 && r.op != "" {
		beside = r.text(compared.median())
		if len(compared) > 1 {
			beside += " (" + compared.ends(r.text) + ")"
		}
	}
	var aims, misses []string
	for _, t := range r.targets {
		aims = append(aims, r.aim(t))
		if miss := r.miss(t, m); miss != "" {
			misses = append(misses, "**"+miss+"**")
		}
	}
	us, verdict := notMeasured, ""
	if len(ours) > 0 {
		us, verdict = r.with(number(ours.median())), strings.Join(misses, ", ")
		if len(aims) > 0 && len(misses) == 0 {
			verdict = "met"
		}
	}
	return []string{r.title, bare, us, spread, beside, strings.Join(aims, ", "), verdict, r.peer}
}

// markdown is a table without the columns that none of its rows has.
func (t table) markdown(m *measured) string {
	lines := [][]string{
		{"figure", "bare limit here", "Tendril", "spread", "compared with bare", "target", "met?", "peer, measured earlier"},
		{"---", "--:", "--:", "--:", "--:", "---", "---", "---"},
	}
	for _, r := range t.rows {
		cells := r.cells(m)
		if t.page {
			cells[3], cells[6], cells[7] = "", "", ""
		}
		lines = append(lines, cells)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n### %s\n\n", t.title)
	for _, line := range lines {
		for column, cell := range line {
			if slices.ContainsFunc(lines[2:], func(l []string) bool { return l[column] != "" }) {
				b.WriteString("| " + cell + " ")
			}
		}
		b.WriteString("|\n")
	}
	return b.String()
}

// missed lists the targets that are not met, and those of what was not measured.
func missed(tables []table, m *measured) string {
	var b strings.Builder
	for _, t := range tables {
		for _, r := range t.rows {
			cells := r.cells(m)
			for _, target := range r.targets {
				switch miss := r.miss(target, m); {
				case len(r.values(m)) == 0:
					fmt.Fprintf(&b, "- %s (%s): %s.\n", r.title, r.aim(target), notMeasured)
				case miss != "" && target.compared:
					fmt.Fprintf(&b, "- %s: %s, compared with bare %s, where %s was the target, %s.\n", r.title, cells[2], cells[4], r.aim(target), miss)
				case miss != "":
					fmt.Fprintf(&b, "- %s: %s, where %s was the target, %s.\n", r.title, cells[2], r.aim(target), miss)
				}
			}
		}
	}
	if b.Len() == 0 {
		return "None.\n"
	}
	return b.String()
}

// checkFloor says how each figure stands beside its bound, and fails if one is beyond it by
// more than the noise of this very run, half of what its rounds differ by, or was not measured.
func checkFloor(floor []row, m *measured) (table string, err error) {
	rows := [][]string{{"benchmark", "figure", "bound", "measured", "noise", ""}}
	for _, f := range floor {
		bound := f.targets[0]
		limit := fmt.Sprintf("%s%g", bound.sign(), bound.limit)
		s := bound.of(f.figure, m)
		if len(s) == 0 {
			err = errors.Join(err, fmt.Errorf("%s %s was not measured", f.bench, f.figure))
			rows = append(rows, []string{f.bench, f.String(), limit, "–", "–", "NOT MEASURED"})
			continue
		}
		noise, verdict := (s[len(s)-1]-s[0])/2, "ok"
		if bound.beyond(s.median()) > noise {
			verdict = "BEYOND"
			err = errors.Join(err, fmt.Errorf("%s %s is %.3g (±%.2g), and must be %s", f.bench, f.figure, s.median(), noise, limit))
		}
		rows = append(rows, []string{f.bench, f.String(), limit, fmt.Sprintf("%.3g", s.median()), fmt.Sprintf("±%.2g", noise), verdict})
	}
	return printable.Table(0, rows...) + "\n", err
}

// writeDocs replaces what a document has between its markers.
func writeDocs(path, figures, missed string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the document: %w", err)
	}
	document := string(text)
	for name, text := range map[string]string{"figures": figures, "missed": missed} {
		begin, end := "<!-- "+name+" -->", "<!-- /"+name+" -->"
		before, rest, opened := strings.Cut(document, begin)
		_, after, closed := strings.Cut(rest, end)
		if !opened || !closed || strings.Count(document, begin)+strings.Count(document, end) != 2 {
			return fmt.Errorf("%s wants %s and, below it, %s, each once", path, begin, end)
		}
		document = before + begin + "\n" + strings.TrimSpace(text) + "\n" + end + after
	}
	if err := os.WriteFile(path, []byte(document), 0o644); err != nil { //nolint:gosec // a page of the documentation
		return fmt.Errorf("writing the document: %w", err)
	}
	return nil
}
