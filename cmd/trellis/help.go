package main

import (
	"fmt"
	"strings"

	"github.com/mitchellh/go-wordwrap"
	"github.com/spf13/cobra"
)

// Columns that a help text has: as many as the terminal within these bounds, for
// longer lines are hard to read; leastColumns where nobody knows.
const (
	leastColumns = 80
	mostColumns  = 100
)

// fitHelp has the help of a verb and of all below it broken where words end.
func (a *app) fitHelp(root *cobra.Command) {
	columns := leastColumns
	if a.out.tty {
		columns = min(max(columns, a.out.width()), mostColumns)
	}
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", fmt.Sprintf(".FlagUsagesWrapped %d", columns)))
	var fit func(*cobra.Command)
	fit = func(cmd *cobra.Command) {
		cmd.Long = fitted(cmd.Long, columns)
		for _, child := range cmd.Commands() {
			fit(child)
		}
	}
	fit(root)
}

// fitted breaks paragraphs anew. What is indented stays as it is.
func fitted(text string, columns int) string {
	var lines []string
	paragraph := ""
	end := func() {
		if paragraph != "" {
			lines = append(lines, wordwrap.WrapString(paragraph, uint(columns)))
		}
		paragraph = ""
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if line == "" || strings.HasPrefix(line, " ") {
			end()
			lines = append(lines, line)
			continue
		}
		paragraph = strings.TrimSpace(paragraph + " " + line)
	}
	end()
	return strings.Join(lines, "\n")
}
