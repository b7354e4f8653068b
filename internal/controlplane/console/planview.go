package console

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tendril-run/tendril/internal/provision"
)

// planGroup is what a plan does in one way.
type planGroup struct {
	Action, Title string
	Resources     []planned
}

// planned is one resource of a plan.
type planned struct {
	provision.PlannedChange
	Why   string // the engine's reason, in words
	Lines []attributeLine
}

// attributeLine is one attribute before and after, as they are to be shown.
type attributeLine struct {
	Path          string
	Before, After string // "" where there is none
	Said          string // instead of After, why it is not shown
	Hidden        bool   // neither is to be seen
	Replaces      bool
}

// planOrder has what takes something away first, as summaries do.
var planOrder = []struct{ action, title string }{
	{"delete", "Destroy"}, {"replace", "Replace"}, {"forget", "Forget"}, {"update", "Change"}, {"create", "Create"},
	{"import", "Import"}, {"move", "Move"}, {"read", "Read"},
}

// planGroups sorts changes by what is done, those of one kind in their order.
func planGroups(changes []provision.PlannedChange) []planGroup {
	var groups []planGroup
	known := map[string]bool{}
	for _, kind := range planOrder {
		known[kind.action] = true
		groups = appendGroup(groups, planGroup{Action: kind.action, Title: kind.title}, changes, func(a string) bool { return a == kind.action })
	}
	return appendGroup(groups, planGroup{Action: "read", Title: "Other"}, changes, func(a string) bool { return !known[a] })
}

func appendGroup(groups []planGroup, g planGroup, changes []provision.PlannedChange, is func(action string) bool) []planGroup {
	for _, c := range changes {
		if is(c.Action) {
			p := planned{PlannedChange: c, Why: reasonWords(c.Reason)}
			for _, a := range c.Attributes {
				p.Lines = append(p.Lines, lineOf(a))
			}
			g.Resources = append(g.Resources, p)
		}
	}
	if len(g.Resources) == 0 {
		return groups
	}
	return append(groups, g)
}

func lineOf(a provision.AttributeChange) attributeLine {
	l := attributeLine{Path: a.Path, Before: valueText(a.Before), After: valueText(a.After), Replaces: a.Replaces}
	switch {
	case a.Sensitive:
		l.Before, l.After, l.Hidden, l.Said = "", "", true, "sensitive, not shown"
	case a.Unknown:
		l.Said = "known after apply"
	case a.Long && l.After == "":
		l.Said = "too long to show"
	}
	return l
}

// valueText is a JSON value as people read it: one text without its quotes where
// it has several lines, else as JSON.
func valueText(raw json.RawMessage) string {
	if len(raw) == 0 {
		return ""
	}
	var s string
	if json.Unmarshal(raw, &s) == nil && strings.Contains(s, "\n") {
		return s
	}
	var indented bytes.Buffer
	if json.Indent(&indented, raw, "", "  ") == nil && indented.Len() > 80 {
		return indented.String()
	}
	return string(raw)
}

// reasons are the engine's words for why something is replaced or destroyed.
var reasons = map[string]string{
	"replace_because_tainted":           "it is tainted: an earlier apply left it half made",
	"replace_because_cannot_update":     "a change of it cannot be made in place",
	"replace_by_request":                "it was asked to be replaced",
	"replace_by_triggers":               "what triggers its replacement has changed",
	"delete_because_no_resource_config": "it is not in the template any more",
	"delete_because_no_module":          "its module is not in the template any more",
	"delete_because_no_move_target":     "what it was moved to is not in the template",
	"delete_because_wrong_repetition":   "the template has it with count or for_each, or without, other than before",
	"delete_because_count_index":        "its number is beyond count now",
	"delete_because_each_key":           "its key is not in for_each any more",
	"read_because_config_unknown":       "what it depends on is known after apply",
	"read_because_dependency_pending":   "what it depends on changes",
	"read_because_check_nested":         "a check needs it",
}

func reasonWords(reason string) string {
	if words, ok := reasons[reason]; ok {
		return words
	}
	return strings.ReplaceAll(reason, "_", " ")
}

// planCounts is what a plan comes to, in words, what is taken away first.
func planCounts(p *provision.PlanSummary) string {
	if p == nil {
		return "Nothing is known of what it would change"
	}
	var counts []string
	for _, c := range []struct {
		n    int
		what string
	}{{p.Destroy, "destroy"}, {p.Replace, "replace"}, {p.Forget, "forget"}, {p.Change, "change"}, {p.Add, "create"}, {p.Import, "import"}, {p.Move, "move"}} {
		if c.n > 0 {
			counts = append(counts, fmt.Sprintf("%d to %s", c.n, c.what))
		}
	}
	return cmp.Or(strings.Join(counts, ", "), "No changes to resources")
}

// planFolded reports whether a plan is too long to be shown unfolded.
func planFolded(p *provision.PlanSummary) bool {
	lines := 0
	for _, r := range p.Resources {
		lines += 1 + len(r.Attributes)
	}
	return lines > 120
}
