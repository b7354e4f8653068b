// Package exitcode has the exit codes of tendril and trellis. Every verb of both
// programs ends with one of them, and both print the table in their help, so a
// script can tell a refused run from a server that is down.
//
// The codes are stable: scripts depend on them.
//
// The package must not know which verb ends with which code, nor why.
package exitcode

import (
	"fmt"
	"strings"
)

// The codes. Table says what they mean.
const (
	OK          = 0
	Failed      = 1
	Usage       = 2
	Unreachable = 3
	Awaits      = 4
	Interrupted = 130 // as shells have it
)

// Meaning is a code and what it stands for.
type Meaning struct {
	Code int
	Text string
}

// Table has all codes, in order.
var Table = []Meaning{
	{OK, "success"},
	{Failed, "the run or the check failed, or the request was refused"},
	{Usage, "the command line or the configuration is wrong"},
	{Unreachable, "the control plane cannot be reached"},
	{Awaits, "the run that was followed needs approval"},
	{Interrupted, "interrupted by Ctrl-C"},
}

// Help is the table for a help text, a line each.
func Help() string {
	var text strings.Builder
	text.WriteString("Exit codes, the same for every verb:\n")
	for _, m := range Table {
		fmt.Fprintf(&text, "\n  %-5d%s", m.Code, m.Text)
	}
	return text.String()
}
