package agentcmd

import (
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/executor"
)

// execCommand is what an agent starts for each provision. It is no use to
// people: without the descriptors that it inherits it can only fail.
func execCommand() *cobra.Command {
	var as string
	cmd := &cobra.Command{
		Use:    "exec",
		Short:  "Carry out one provision for an agent that started this process",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := executor.Main(as); err != nil {
				return failure{err, ExitFailure}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&as, "as", "", "uids to take in place of root")
	return cmd
}
