package main

import (
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/version"
)

func (a *app) versionCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print this program's version and the contract it speaks",
		Example: `  trellis version -o json`,
		Args:    none,
		RunE: func(*cobra.Command, []string) error {
			info := version.Of(queue.Contract)
			return a.answer(out, info, "%s", info.Sentence("trellis"))
		},
	}
	addFormat(cmd, &out)
	return cmd
}
