package agentcmd

import (
	"fmt"
	"os"

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
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return failure{fmt.Errorf("find this program's file: %w", err), ExitFailure}
			}
			if err := executor.Main(as, append([]string{self}, sibling(cmd, "git-helper")...)); err != nil {
				return failure{err, ExitFailure}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&as, "as", "", "uids to take in place of root")
	return cmd
}
