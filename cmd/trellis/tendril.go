//go:build linux

package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/agentcmd"
	"github.com/tendril-run/tendril/internal/controlplane/inspect"
)

// tendrilCommand is the agent inside this program, so that one binary is
// enough on one machine. `trellis up` starts it.
func tendrilCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:    agentVerb,
		Short:  "The agent",
		Hidden: true,
		Args:   verb,

		ValidArgsFunction: cobra.NoFileCompletions,

		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(agentcmd.Commands(nil)...)
	return cmd
}

// agentExit is the exit code of a verb of the agent's.
func agentExit(err error) int { return agentcmd.ExitCode(err) }

// inspectTemplateCommand is the process of its own in which a template is looked
// at: what is in it must not take this one along.
func inspectTemplateCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: inspectVerb, Short: "Inspect one template, as trellis asks on stdin", Hidden: true, Args: none,
		RunE: func(*cobra.Command, []string) error {
			if code := inspect.Child(os.Stdin, os.Stdout); code != exitOK {
				return outcome(code)
			}
			return nil
		},
	}
}
