package main

import (
	"runtime"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/agentcmd"
	"github.com/tendril-run/tendril/internal/queue"
)

func (a *app) versionCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print this program's version and the contract it speaks",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return a.answer(out, map[string]any{"version": agentcmd.Version(), "contract": queue.Contract, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH},
				"trellis %s, contract %d, %s %s/%s", agentcmd.Version(), queue.Contract, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		},
	}
	addFormat(cmd, &out)
	return cmd
}
