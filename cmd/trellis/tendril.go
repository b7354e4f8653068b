//go:build linux

package main

import (
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/agentcmd"
)

// tendrilCommand is the agent inside this program, so that one binary is
// enough on one machine. `trellis up` starts it.
func (a *app) tendrilCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:    agentVerb,
		Short:  "The agent",
		Hidden: true,
		Args:   verb,

		ValidArgsFunction: cobra.NoFileCompletions,

		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(agentcmd.Commands()...)
	return cmd
}

// agentExit is the exit code of a verb of the agent's.
func agentExit(err error) int { return agentcmd.ExitCode(err) }
