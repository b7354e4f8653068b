package provision

import (
	"fmt"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
)

// maxListed is how many known names a message lists when none is near.
const maxListed = 12

// DidYouMean ends a message about a name that is not among known: with the
// nearest known name if one is near enough to be a slip of the pen, else with
// all of them if they are few, else with nothing.
func DidYouMean(name string, known []string) string {
	if near := nearest(name, known); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	if len(known) == 0 || len(known) > maxListed {
		return ""
	}
	return "; known: " + strings.Join(slices.Sorted(slices.Values(known)), ", ")
}

// nearest returns the known name that takes the fewest edits to reach, at most
// one for every three characters, or "".
func nearest(name string, known []string) string {
	const longest = 256 // nobody mistypes a longer name, and the cost is quadratic
	if len(name) > longest {
		return ""
	}
	best, fewest := "", max(1, (len(name)+1)/3)+1
	for _, candidate := range slices.Sorted(slices.Values(known)) {
		if len(candidate) > longest {
			continue
		}
		if edits := levenshtein.Distance(fold(name), fold(candidate), nil); edits < fewest {
			best, fewest = candidate, edits
		}
	}
	return best
}

// fold makes names that differ only in case or in their dashes the same.
func fold(name string) string { return strings.ReplaceAll(strings.ToLower(name), "-", "_") }
