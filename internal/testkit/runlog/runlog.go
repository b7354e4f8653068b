// Package runlog reads the logs of runs for tests.
//
// Terraform and OpenTofu show a provisioner's line in several when they waited 100 ms
// for its next byte, and drop the whitespace before each cut. On a busy machine they
// cut anywhere, however the line was written. So tests ask here for what was printed.
//
// It must not know what a test's template prints.
package runlog

import (
	"regexp"
	"strings"
	"unicode"
)

// printed is one line that an engine shows of what a provisioner printed.
var printed = regexp.MustCompile(`(?m)^\S+ \((?:local|remote)-exec\): ?(.*)$`)

// command begins what the engine itself prints of a provisioner: the command, which names
// whatever it will print.
const command = `Executing: ["`

// Printed answers what provisioners printed, in the order of the log, without any
// whitespace: neither the ends of lines nor the cuts can be told apart.
func Printed(log string) string {
	var all strings.Builder
	for _, line := range printed.FindAllStringSubmatch(log, -1) {
		if strings.HasPrefix(line[1], command) {
			continue
		}
		all.WriteString(squeeze(line[1]))
	}
	return all.String()
}

// Says reports whether a log has a text, or provisioners printed it. A text that
// begins with "(local-exec): " counts only as printed.
func Says(log, text string) bool {
	if strings.Contains(log, text) {
		return true
	}
	return strings.Contains(Printed(log), squeeze(strings.TrimPrefix(text, "(local-exec): ")))
}

// Count answers how often provisioners printed a text.
func Count(log, text string) int {
	return strings.Count(Printed(log), squeeze(text))
}

func squeeze(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, text)
}
