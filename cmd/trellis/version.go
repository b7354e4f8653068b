package main

import (
	"runtime"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/agentcmd"
	"github.com/tendril-run/tendril/internal/queue"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print this program's version and the contract it speaks",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return a.print("trellis %s, contract %d, %s %s/%s", agentcmd.Version(), queue.Contract, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		},
	}
}
