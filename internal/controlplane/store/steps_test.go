package store

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// The steps of a run are what its events say, machine by machine, with what is still to come.
func TestStepsOf(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		events  string // KIND ADDRESS ID, separated by commas
		percent map[string]int
		want    string
		over    bool
	}{
		"one that was killed": {"started a clone,finished a clone,started a boot", map[string]int{"a": 5}, "a clone done 1; a boot failed 58", true},
		"none":                {"", nil, "", false},
		"declared alone":      {"declared - clone,declared - boot", nil, "- clone waiting; - boot waiting", false},
		"two machines, of which one is begun": {"declared - clone,declared - boot,started a clone,finished a clone,started a boot,started b clone", map[string]int{"a": 40, "b": 7, "c": 1},
			"a clone done 1; a boot running 40%; b clone running 7%; b boot waiting", false},
		"one that failed":               {"declared - clone,declared - boot,started a clone,failed a clone", nil, "a clone failed 1; a boot waiting", false},
		"one that was not declared":     {"declared - clone,started a other,finished a other", nil, "a other done 1; a clone waiting", false},
		"the run itself":                {"started - net,finished - net,started a clone", nil, "- net done 1; a clone running", false},
		"one that comes again":          {"started a clone,finished a clone,started a clone", nil, "a clone done 1; a clone running", false},
		"an end without a beginning":    {"finished a clone", nil, "a clone done 0", false},
		"what is no object is left out": {"!", nil, "", false},
	} {
		var events []Event
		for i, text := range strings.FieldsFunc(tt.events, func(r rune) bool { return r == ',' }) {
			var kind, address, id string
			if _, err := fmt.Sscan(text, &kind, &address, &id); err != nil {
				events = append(events, Event{Kind: "step_started", Detail: json.RawMessage("1")})
				continue
			}
			if address == "-" {
				address = ""
			}
			detail, err := json.Marshal(map[string]string{"address": address, "action": id, "message": "The " + id})
			if err != nil {
				t.Fatal(err)
			}
			events = append(events, Event{Kind: "step_" + kind, At: began.Add(time.Duration(i) * time.Second), Detail: detail})
		}
		var running []provision.Running
		for address, percent := range tt.percent {
			running = append(running, provision.Running{Address: address, Percent: &percent})
		}
		var got []string
		var over *time.Time
		if tt.over {
			over = new(began.Add(time.Minute))
		}
		for _, step := range stepsOf(events, running, over) {
			if step.Label != "The "+step.ID {
				t.Errorf("%s: the label of %s is %q", name, step.ID, step.Label)
			}
			text := strings.TrimSpace(fmt.Sprintf("%s %s %s", orDash(step.Machine), step.ID, step.State))
			if step.EndedAt != nil {
				text += fmt.Sprintf(" %.0f", step.EndedAt.Sub(*step.StartedAt).Seconds())
			}
			if step.Percent != nil {
				text += fmt.Sprintf(" %d%%", *step.Percent)
			}
			got = append(got, text)
		}
		if got := strings.Join(got, "; "); got != tt.want {
			t.Errorf("%s: steps = %q, want %q", name, got, tt.want)
		}
	}
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
