package agentcmd

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/githelper"
	"github.com/tendril-run/tendril/internal/process"
)

// gitHelperCommand is what git starts while an engine fetches modules. Its
// arguments are git's.
func gitHelperCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "git-helper",
		Short:              "Ask the run that git belongs to for its credentials",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			// A password passes through.
			if err := process.Undumpable(); err != nil {
				return failure{err, ExitFailure}
			}
			os.Exit(githelper.Main(args, os.Stdin, os.Stdout, os.Stderr))
			return nil
		},
	}
}
