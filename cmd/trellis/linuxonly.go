package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// Verbs of other programs within this one, which nobody lists.
const (
	agentVerb   = "tendril"
	inspectVerb = "inspect-template"
)

// isAgentVerb reports whether cmd is one of the agent's own, which has exit
// codes of its own.
func isAgentVerb(cmd *cobra.Command) bool {
	for ; cmd != nil && cmd.HasParent(); cmd = cmd.Parent() {
		if cmd.Parent().Name() == agentVerb {
			return true
		}
	}
	return false
}

// linuxOnly is a verb of a system where it cannot be: it says so, whatever comes
// after it.
func linuxOnly(verb, short string) *cobra.Command {
	return &cobra.Command{
		Use: verb, Short: short + " (on Linux)", DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return fmt.Errorf("%s needs Linux, and this is %s/%s: it runs what others have made, and only there can it bound that and end all of it. "+
				"Run it on a Linux machine, in a virtual machine or a container, and ask it from here: trellis login URL", cmd.CommandPath(), runtime.GOOS, runtime.GOARCH)
		},
	}
}
