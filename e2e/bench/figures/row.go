package main

import (
	"fmt"
	"strings"
)

// comparison is how a figure stands beside its bare limit.
type comparison int

const (
	none       comparison = iota
	ratio                 // a part of bare
	difference            // so much over bare
)

// quantity is what a target speaks of.
type quantity int

const (
	value    quantity = iota // the figure itself
	compared                 // its ratio to bare, or its difference
)

// target is what a figure should reach.
type target struct {
	of     quantity
	atMost bool // else at least
	limit  float64
}

func atMost(limit float64) target      { return target{value, true, limit} }
func atLeast(limit float64) target     { return target{value, false, limit} }
func atMostOver(limit float64) target  { return target{compared, true, limit} }
func atLeastPart(limit float64) target { return target{compared, false, limit} }

// group is one table.
type group struct {
	title string
	rows  []row
}

// row is one figure.
type row struct {
	figure  string
	bench   string // the benchmark, without "Benchmark"
	metric  string
	bare    string // the metric of its limit, "" if there is none
	compare comparison
	over    string // a metric that has the difference already, of what was measured in pairs
	targets []target
	peer    string // what others took, measured before on such a machine
	absent  string // why it cannot be measured yet
}

// comparedIn are the ratios or differences of the rounds.
func (r row) comparedIn(m *measured) spread {
	return m.compared(r.bench, func(round round) (float64, bool) {
		if over, ok := round[r.over]; ok {
			return over, true
		}
		ours, have := round[r.metric]
		bare, haveBare := round[r.bare]
		if r.compare == ratio {
			return ours / bare, have && haveBare
		}
		return ours - bare, have && haveBare && r.compare == difference
	})
}

// miss is a target that a figure does not reach, and by how much; "" if it does.
func (r row) miss(t target, m *measured) string {
	s := m.values(r.bench, r.metric)
	if t.of == compared {
		s = r.comparedIn(m)
	}
	if len(s) == 0 {
		return "not comparable: no bare limit in this run"
	}
	by := t.limit - s.median()
	if t.atMost {
		by = -by
	}
	if by <= 0 {
		return ""
	}
	if t.of == compared && r.compare == ratio {
		return fmt.Sprintf("missed by %s percentage points", plain(100*by))
	}
	text := "missed by " + in(plain(by), unit(r.metric))
	if t.limit > 0 {
		text += fmt.Sprintf(" (%.0f %%)", 100*by/t.limit)
	}
	return text
}

// verdict says of each target whether it is met.
func (r row) verdict(m *measured) string {
	var all []string
	for _, t := range r.targets {
		if miss := r.miss(t, m); miss != "" {
			all = append(all, "**"+miss+"**")
		}
	}
	switch {
	case len(r.targets) == 0:
		return ""
	case len(all) == 0:
		return "met"
	case len(r.targets) == 1:
		return all[0]
	}
	return strings.Join(all, ", ") + fmt.Sprintf(" (%d of %d met)", len(r.targets)-len(all), len(r.targets))
}

// aim is what the targets ask for.
func (r row) aim() string {
	var all []string
	for _, t := range r.targets {
		sign := "≥ "
		if t.atMost {
			sign = "≤ "
		}
		switch {
		case t.of == value:
			all = append(all, sign+in(exact(t.limit), unit(r.metric)))
		case r.compare == ratio:
			all = append(all, sign+exact(100*t.limit)+" % of bare")
		default:
			all = append(all, sign+in(exact(t.limit), unit(r.metric))+" over bare")
		}
	}
	return strings.Join(all, ", ")
}
