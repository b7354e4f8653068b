package main

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// The help of each verb fits into 80 columns, and is broken where words end.
func TestHelpFitsTheTerminal(t *testing.T) {
	t.Parallel()
	root := newApp("trellis", func(string) string { return "" }, nil, terminal{}, terminal{}).command()
	var look func(*cobra.Command)
	look = func(cmd *cobra.Command) {
		text := strings.Join([]string{cmd.Long, cmd.Example, cmd.LocalFlags().FlagUsagesWrapped(leastColumns)}, "\n")
		for _, child := range cmd.Commands() {
			if child.Hidden {
				continue
			}
			text += "\n  " + strings.Repeat("x", child.NamePadding()) + " " + child.Short
			look(child)
		}
		for line := range strings.Lines(text) {
			if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > leastColumns {
				t.Errorf("the help of %q has a line of more than %d columns: %s", cmd.CommandPath(), leastColumns, line)
			}
		}
	}
	look(root)
	if got, want := fitted("one two\nthree four\n\n  as it  is\nfive", 9), "one two\nthree\nfour\n\n  as it  is\nfive"; got != want {
		t.Errorf("fitted() = %q, want %q", got, want)
	}
	if usage := root.UsageString(); !strings.Contains(usage, "--data-dir string") || strings.Contains(usage, "FlagUsages") {
		t.Errorf("the usage is %s, want the flags", usage)
	}
}
