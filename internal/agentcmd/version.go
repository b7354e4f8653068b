package agentcmd

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/version"
)

func versionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print this program's version and the contract it speaks",
		Long: `Print this program's version, the commit it was built from, and the version of
the SQL contract it speaks. A database of the same contract, of one version older
or of any newer one serves it.`,
		Example: `  tendril version -o json`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := version.Of(queue.Contract)
			switch output {
			case "text":
				_, err := fmt.Fprintln(cmd.OutOrStdout(), info.Sentence("tendril"))
				return err
			case "json":
				encoder := json.NewEncoder(cmd.OutOrStdout())
				encoder.SetIndent("", "  ")
				return encoder.Encode(info)
			default:
				return wrongOutput(output)
			}
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

func wrongOutput(output string) error {
	return fmt.Errorf("invalid argument %q for \"-o, --output\": it is text or json", output)
}
