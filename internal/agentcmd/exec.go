package agentcmd

import (
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/executor"
)

// execCommand is what an agent starts for each provision. It is no use to
// people: without the descriptors that it inherits it can only fail.
func execCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "exec",
		Short:  "Carry out one provision for an agent that started this process",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := executor.Main(); err != nil {
				return failure{err, ExitFailure}
			}
			return nil
		},
	}
}
