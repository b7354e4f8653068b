package main

import (
	"fmt"
	"strings"
)

// deploysChart draws how long a deploy takes: what bare Terraform takes of it,
// and Tendril's part on top of that.
func deploysChart(now, before *measured) (string, error) {
	chart := struct {
		Frame    frame
		Subtitle string
		Ticks    []mark
		Groups   []deploys
		Bottom   float64
	}{
		Subtitle: "Milliseconds a deploy of one resource; shorter is better",
	}
	most := 0.0
	for _, g := range []deploys{
		{Name: "First deploy of a new agent", bench: cold},
		{Name: "Next deploy to the same workspace", bench: warm, peer: otfDeploy},
		{Name: "20 at once on 5 slots, time for each", bench: fleet, peer: 1000 / otfRuns},
	} {
		if err := g.measure(now, before); err != nil {
			return "", err
		}
		for _, b := range g.Bars {
			most = max(most, b.bare, b.ours)
		}
		chart.Groups = append(chart.Groups, g)
	}

	scale := (chartWidth - 2*margin - 190) / most // room for a text behind the longest
	y := 138.0
	for i := range chart.Groups {
		y = chart.Groups[i].place(y, scale)
	}
	chart.Bottom = y - 22
	for at := 0.0; at < most+50; at += 100 {
		chart.Ticks = append(chart.Ticks, mark{margin + at*scale, plain(at)})
	}
	chart.Frame = frame{"Time over bare Terraform", chart.Subtitle + ". " + describe(chart.Groups), chartWidth, int(y) + 16}
	return draw("deploys.svg.tmpl", chart)
}

// deploys are the bars of one benchmark.
type deploys struct {
	Name  string
	Y     float64
	Bars  []bar
	bench string
	peer  float64 // in ms, 0 = not known
}

// bar is one deploy: drawn it has a part of bare and one on top of it. A peer's
// is measured elsewhere and drawn whole.
type bar struct {
	Kind                        string // "", "before" or "peer"
	Y, Height, Bare, Ours, Peer float64
	TextX, TextY                float64
	Text                        string
	bare, ours                  float64 // ms
}

func (g *deploys) measure(now, before *measured) error {
	bare, ours, ok := deployTime(now, g.bench)
	if !ok {
		return lacking(g.bench)
	}
	g.Bars = []bar{{bare: bare, ours: ours}}
	if before != nil {
		if bare, ours, ok = deployTime(before, g.bench); ok {
			g.Bars = append(g.Bars, bar{bare: bare, ours: ours, Kind: "before"})
		}
	}
	if g.peer > 0 {
		g.Bars = append(g.Bars, bar{ours: g.peer, Kind: "peer"})
	}
	return nil
}

// deployTime is how long a deploy takes, in ms: bare, and with what pairs of
// both differ by. Of a fleet it is the time of all divided by their number.
func deployTime(m *measured, bench string) (bare, ours float64, ok bool) {
	b, o := m.values(bench, "bare-p50-ms"), m.values(bench, "over-ms")
	if len(b) > 0 && len(o) > 0 {
		return b.median(), b.median() + o.median(), true
	}
	b, o = m.values(bench, "bare-runs-/s"), m.values(bench, "runs-/s")
	if len(b) > 0 && len(o) > 0 {
		return 1000 / b.median(), 1000 / o.median(), true
	}
	return 0, 0, false
}

// place lays a group out below y and returns where the next begins.
func (g *deploys) place(y, scale float64) float64 {
	g.Y = y
	y += 10
	for i := range g.Bars {
		b := &g.Bars[i]
		b.Y, b.Height = y, 24
		if b.Kind == "peer" {
			b.Peer, b.Text = scale*b.ours, fmt.Sprintf("OTF %.0f ms", b.ours)
		} else {
			b.Bare, b.Ours = scale*min(b.bare, b.ours), scale*max(0, b.ours-b.bare)
			b.Text = strings.TrimSpace(fmt.Sprintf("%.0f %s ms %s", b.bare, added(b.ours-b.bare), b.Kind))
		}
		b.TextX, b.TextY = margin+b.Bare+b.Ours+b.Peer+8, y+b.Height-6
		y += b.Height + 4
	}
	return y + 34
}

// added is what is added to a number, as in a sum.
func added(v float64) string {
	if v < 0 {
		return fmt.Sprintf("− %.0f", -v)
	}
	return fmt.Sprintf("+ %.0f", v)
}

// describe says the bars in words, for whoever does not see them.
func describe(groups []deploys) string {
	var all []string
	for _, g := range groups {
		for _, b := range g.Bars {
			all = append(all, g.Name+": "+b.Text)
		}
	}
	return strings.Join(all, "; ") + "."
}
