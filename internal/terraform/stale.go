package terraform

import "strings"

// staleness reports whether the title of an error says that a saved plan does
// not fit the state any more, and what has happened to that.
func staleness(summary string) (why string, stale bool) {
	switch {
	case strings.HasPrefix(summary, "Saved plan is stale"):
		return "the state has moved on", true
	case strings.HasPrefix(summary, "Saved plan does not match the given state"):
		return "the state was replaced by another one", true
	}
	return "", false
}
