package main

import (
	"fmt"
	"slices"
	"strings"
)

// column is one of a table.
type column struct {
	title string
	right bool
	cell  func(r row, now, before *measured) string
}

// columns are all there may be; a table leaves out what none of its rows has.
var columns = []column{
	{"figure", false, func(r row, _, _ *measured) string { return r.figure }},
	{"bare limit here", true, bareCell},
	{"before", true, beforeCell},
	{"Tendril", true, ourCell},
	{"spread", true, spreadCell},
	{"beside bare", true, comparedCell},
	{"target", false, func(r row, _, _ *measured) string { return r.aim() }},
	{"met?", false, verdictCell},
	{"peer, measured earlier", false, func(r row, _, _ *measured) string { return r.peer }},
}

func bareCell(r row, now, _ *measured) string {
	return median(now.values(r.bench, r.bare), unit(r.metric))
}

func beforeCell(r row, _, before *measured) string {
	if before == nil {
		return ""
	}
	return median(before.values(r.bench, r.metric), unit(r.metric))
}

// ourCell never is empty: a figure that is missing is told.
func ourCell(r row, now, _ *measured) string {
	if text := median(now.values(r.bench, r.metric), unit(r.metric)); text != "" {
		return text
	}
	return notMeasured(r)
}

func notMeasured(r row) string {
	if r.absent != "" {
		return "not measured: " + r.absent
	}
	return "not measured"
}

func spreadCell(r row, now, _ *measured) string {
	s := now.values(r.bench, r.metric)
	if len(s) < 2 {
		return ""
	}
	return s.ends(plain)
}

func comparedCell(r row, now, _ *measured) string {
	s := r.comparedIn(now)
	if len(s) == 0 {
		return ""
	}
	percent := func(v float64) string { return plain(100 * v) }
	if r.compare == ratio {
		return withSpread(in(percent(s.median()), "%"), s, percent)
	}
	return withSpread(in(signed(s.median()), unit(r.metric)), s, signed)
}

func withSpread(text string, s spread, write func(float64) string) string {
	if len(s) < 2 {
		return text
	}
	return fmt.Sprintf("%s (%s)", text, s.ends(write))
}

func verdictCell(r row, now, _ *measured) string {
	if len(now.values(r.bench, r.metric)) == 0 {
		return ""
	}
	return r.verdict(now)
}

func median(s spread, unit string) string {
	if len(s) == 0 {
		return ""
	}
	return in(plain(s.median()), unit)
}

// tables are all groups in Markdown.
func tables(groups []group, now, before *measured) string {
	var b strings.Builder
	for _, g := range groups {
		fmt.Fprintf(&b, "\n### %s\n\n", g.title)
		g.table(&b, now, before)
	}
	return b.String()
}

func (g group) table(b *strings.Builder, now, before *measured) {
	cells := make([][]string, len(g.rows)+2)
	for _, c := range columns {
		var texts []string
		for _, r := range g.rows {
			texts = append(texts, c.cell(r, now, before))
		}
		if !slices.ContainsFunc(texts, func(text string) bool { return text != "" }) {
			continue
		}
		rule := "---"
		if c.right {
			rule = "--:"
		}
		for i, text := range append([]string{c.title, rule}, texts...) {
			cells[i] = append(cells[i], text)
		}
	}
	for _, line := range cells {
		fmt.Fprintf(b, "| %s |\n", strings.Join(line, " | "))
	}
}

// missed lists the targets that are not met, and those of what was not measured.
func missed(groups []group, now *measured) string {
	var b strings.Builder
	for _, g := range groups {
		for _, r := range g.rows {
			ours := now.values(r.bench, r.metric)
			if len(ours) == 0 {
				if len(r.targets) > 0 {
					fmt.Fprintf(&b, "- %s (%s): %s.\n", r.figure, r.aim(), notMeasured(r))
				}
				continue
			}
			for _, t := range r.targets {
				if miss := r.miss(t, now); miss != "" {
					one, got := r, median(ours, unit(r.metric))
					one.targets = []target{t}
					if t.of == compared {
						got += ", beside bare " + comparedCell(r, now, nil)
					}
					fmt.Fprintf(&b, "- %s: %s, where %s was the target, %s.\n", r.figure, got, one.aim(), miss)
				}
			}
		}
	}
	if b.Len() == 0 {
		return "None.\n"
	}
	return b.String()
}
