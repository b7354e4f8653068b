package runlog

import "regexp"

var colours = regexp.MustCompile("\x1b\\[[0-9;]*m")

// Plain answers a log without its colours, for tests that look for words: engines colour
// parts of a line.
func Plain(log string) string { return colours.ReplaceAllString(log, "") }
