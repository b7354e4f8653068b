package main

import (
	"encoding/json"
	"fmt"
	"os"
)

// record is a figure for programs, such as one that lays it beside another system's of the same
// hour.
type record struct {
	Table     string `json:"table"`
	Figure    string `json:"figure"`
	Benchmark string `json:"benchmark"`
	// Metric ends with its unit, as -ms or -MB.
	Metric string `json:"metric"`
	Value  sample `json:"value"`
	// Bare is the machine's own limit in the same rounds, and Compared what Tendril is to it, as
	// Comparison says: "-" the difference, "/" the ratio. Both are null where there is none.
	Bare       *sample `json:"bare"`
	Comparison string  `json:"comparison,omitempty"`
	Compared   *sample `json:"compared"`
	Targets    []aim   `json:"targets,omitempty"`
}

// sample is what several rounds have of a figure.
type sample struct {
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
	Rounds int     `json:"rounds"`
}

type aim struct {
	Target string `json:"target"`
	Met    bool   `json:"met"`
}

func (s spread) sample() *sample {
	if len(s) == 0 {
		return nil
	}
	return &sample{Median: s.median(), Least: s[0], Most: s[len(s)-1], Rounds: len(s)}
}

// writeJSON writes what was measured, and on what.
func writeJSON(path string, tables []table, m *measured) error {
	all := struct {
		Machine map[string]string `json:"machine"`
		Figures []record          `json:"figures"`
	}{m.settings, []record{}}
	for _, t := range tables {
		for _, r := range t.rows {
			value := r.values(m).sample()
			if value == nil {
				continue
			}
			one := record{Table: t.title, Figure: r.title, Benchmark: r.bench, Metric: r.metric, Value: *value, Bare: m.each(r.bench, figure{metric: r.bare}).sample()}
			if r.op != "" {
				one.Comparison, one.Compared = r.op, m.each(r.bench, r.figure).sample()
			}
			for _, b := range r.targets {
				one.Targets = append(one.Targets, aim{r.aim(b), r.miss(b, m) == ""})
			}
			all.Figures = append(all.Figures, one)
		}
	}
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the figures: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("writing the figures: %w", err)
	}
	return nil
}
