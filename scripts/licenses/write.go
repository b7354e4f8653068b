package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

const heading = `What others have made and is part of tendril and trellis, with its licences and
notices as they came. Tendril's own licence is in LICENSE.

`

var rule = strings.Repeat("=", 79) + "\n"

// write writes the texts of all parts into one file, the same for the same
// parts.
func write(path string, parts []part) error {
	var b strings.Builder
	b.WriteString(heading)
	for _, p := range parts {
		fmt.Fprintf(&b, "  %s %s: %s\n", p.name, p.version, strings.Join(p.licenses, ", "))
	}
	for _, p := range parts {
		for _, name := range slices.Sorted(maps.Keys(p.texts)) {
			fmt.Fprintf(&b, "\n%s%s %s, %s\n%s\n%s\n", rule, p.name, p.version, name, rule, strings.TrimRight(p.texts[name], " \t\r\n"))
		}
	}
	return os.WriteFile(path, []byte(b.String()), 0o644) //nolint:gosec // for everybody to read
}
