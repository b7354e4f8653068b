package provision

import (
	"slices"
	"strings"
	"testing"
)

func TestDidYouMean(t *testing.T) {
	t.Parallel()
	many := strings.Split("alpha bravo charlie delta echo foxtrot golf hotel india juliett kilo lima mike", " ")
	for _, tc := range []struct {
		name  string
		known []string
		want  string
	}{
		{"regoin", []string{"environment", "region"}, `; did you mean "region"?`},
		{"Node-Groups", []string{"node_groups", "node_group"}, `; did you mean "node_groups"?`},
		{"colour", []string{"region", "environment"}, `; known: environment, region`},
		{"x", []string{"y"}, `; did you mean "y"?`},
		{"zulu", many, ""},
		{"zulu", nil, ""},
		{strings.Repeat("a", 1000), []string{strings.Repeat("a", 999), "b"}, "; known: " + strings.Join([]string{strings.Repeat("a", 999), "b"}, ", ")},
	} {
		if got := DidYouMean(tc.name, slices.Clone(tc.known)); got != tc.want {
			t.Errorf("DidYouMean(%q, %q) = %q, want %q", tc.name, tc.known, got, tc.want)
		}
	}
}
