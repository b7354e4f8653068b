package main

import (
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/agentcmd"
)

const agentVerb = "tendril"

// tendrilCommand is the agent inside this program, so that one binary is
// enough on one machine. `trellis up` starts it.
func (a *app) tendrilCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:    agentVerb,
		Short:  "The agent",
		Hidden: true,
		Args:   verb,
		RunE:   func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(agentcmd.Commands()...)
	return cmd
}

// isAgentVerb reports whether cmd is one of the agent's own, which has exit
// codes of its own.
func isAgentVerb(cmd *cobra.Command) bool {
	return cmd != nil && cmd.Parent() != nil && cmd.Parent().Name() == agentVerb
}
