package agentcmd

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// complete gives a verb, those below it and their flags their words: where there are
// none it says so, since a shell offers the files of the directory otherwise.
func complete(verb *cobra.Command) {
	for _, child := range verb.Commands() {
		complete(child)
	}
	if verb.ValidArgsFunction == nil {
		verb.ValidArgsFunction = cobra.NoFileCompletions
	}
	verb.Flags().VisitAll(func(flag *pflag.Flag) {
		if flag.Value.Type() == "bool" {
			return
		}
		words := cobra.NoFileCompletions
		switch flag.Name {
		case "config":
			words = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)
		case "data-dir":
			words = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
		case "output":
			words = cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp)
		}
		_ = verb.RegisterFlagCompletionFunc(flag.Name, words) // the flag is there
	})
}
