package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// linesChart draws which part of all lines is in the database how long after it
// was printed.
func linesChart(now, _ *measured) (string, error) {
	chart := struct {
		Frame                    frame
		Subtitle                 string
		Left, Top, Bottom, NoteY float64
		Curves                   []curve
		Rows, Ticks, Peers       []mark
		Targets                  []diamond
	}{
		Subtitle: "Which part of the lines is in the database how soon",
		Left:     74, Top: 196, Bottom: 436, NoteY: 494,
	}
	curves := []curve{
		{Name: "after silence", Kind: "silence", bench: afterSilence},
		{Name: "10 lines a second", Kind: "steady", bench: steady},
		{Name: "1,000 lines a second", Kind: "fast", bench: fast},
	}
	plane := plane{left: chart.Left, right: chartWidth - margin, top: chart.Top, bottom: chart.Bottom, from: 1, to: 2000}
	for i := range curves {
		if err := curves[i].measure(now); err != nil {
			return "", err
		}
		plane.widen(curves[i].times)
	}
	for i, c := range curves {
		c.Points, c.LegendY = plane.points(c.times), 92+26*float64(i)
		chart.Curves = append(chart.Curves, c)
		for _, t := range targets(c.bench) {
			// The first on top and the smallest, for two may be at one place.
			chart.Targets = slices.Insert(chart.Targets, 0, diamond{c.Kind, plane.x(t.ms), plane.y(t.percent), float64(7 + 3*i)})
		}
	}
	for _, percent := range []int{0, 25, 50, 75, 100} {
		chart.Rows = append(chart.Rows, mark{plane.y(percent), fmt.Sprint(percent, " %")})
	}
	for _, ms := range []float64{0.1, 1, 10, 100, 1000, 10_000, 100_000} {
		if ms >= plane.from && ms <= plane.to {
			chart.Ticks = append(chart.Ticks, mark{plane.x(ms), timeText(ms)})
		}
	}
	chart.Peers = []mark{{plane.x(coderSends), "Coder"}, {plane.x(buildkiteSends), "Buildkite"}}
	chart.Frame = frame{"From a printed line to its row", fmt.Sprintf("%s: %s; Coder sends every %s, Buildkite every %s.",
		chart.Subtitle, inWords(chart.Curves), timeText(coderSends), timeText(buildkiteSends)), chartWidth, 516}
	return draw("lines.svg.tmpl", chart)
}

// diamond is a target.
type diamond struct {
	Kind       string
	X, Y, Size float64
}

// targets are when which part of a benchmark's lines should be there.
func targets(bench string) []timed {
	var all []timed
	for _, g := range groups {
		for _, r := range g.rows {
			var percent int
			if n, _ := fmt.Sscanf(r.metric, "p%d-ms", &percent); n == 0 || r.bench != bench {
				continue
			}
			for _, t := range r.targets {
				all = append(all, timed{percent, t.limit})
			}
		}
	}
	return all
}

// plane turns times and percents into coordinates; times logarithmically, for a
// tenth of a millisecond and a second are both of interest.
type plane struct{ left, right, top, bottom, from, to float64 }

// widen makes room for all times.
func (p *plane) widen(times []timed) {
	for _, t := range times {
		for t.ms < p.from && p.from > 0.1 {
			p.from /= 10
		}
		for t.ms > p.to {
			p.to *= 2
		}
	}
}

func (p plane) x(ms float64) float64 {
	return p.left + (p.right-p.left)*math.Log(max(ms, p.from)/p.from)/math.Log(p.to/p.from)
}

func (p plane) y(percent int) float64 { return p.bottom - (p.bottom-p.top)*float64(percent)/100 }

// points is a line through all times, from the bottom: no line was faster than
// the first.
func (p plane) points(times []timed) string {
	points := []string{fmt.Sprintf("%.1f,%.1f", p.x(times[0].ms), p.bottom)}
	for _, t := range times {
		points = append(points, fmt.Sprintf("%.1f,%.1f", p.x(t.ms), p.y(t.percent)))
	}
	return strings.Join(points, " ")
}

// curve is the distribution of one benchmark's times.
type curve struct {
	Name, Kind, Text, Points string
	LegendY                  float64
	bench                    string
	times                    []timed
}

// timed is in what time a part of the lines is there.
type timed struct {
	percent int
	ms      float64
}

func (c *curve) measure(m *measured) error {
	of := map[int]string{}
	for percent := 1; percent <= 100; percent++ {
		if s := m.values(c.bench, fmt.Sprintf("p%d-ms", percent)); len(s) > 0 {
			c.times = append(c.times, timed{percent, s.median()})
			of[percent] = plain(s.median())
		}
	}
	if of[50] == "" || of[99] == "" {
		return lacking(c.bench + " with p50-ms and p99-ms")
	}
	c.Text = fmt.Sprintf("p50 %s ms, p99 %s ms", of[50], of[99])
	return nil
}

func timeText(ms float64) string {
	if ms >= 1000 {
		return exact(ms/1000) + " s"
	}
	return exact(ms) + " ms"
}

func inWords(curves []curve) string {
	var all []string
	for _, c := range curves {
		all = append(all, c.Name+" "+c.Text)
	}
	return strings.Join(all, "; ")
}
