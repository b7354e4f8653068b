package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/devstack"
	"github.com/tendril-run/tendril/internal/controlplane/store"
)

func (a *app) envCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "env",
		Short: "Print how to reach the running instance, as shell exports",
		Long: `Prints, as exports for a POSIX shell, how to reach the instance that runs on the
data directory: TRELLIS_URL, TRELLIS_DATABASE_URL (as the database's owner),
TENDRIL_QUEUE_URL and TENDRIL_API_TOKEN (as an agent). They hold secrets.`,
		Example: `  eval "$(trellis env)"
  psql "$TRELLIS_DATABASE_URL"
  tendril run --name second --data-dir ./second`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			runtime, err := devstack.ReadRuntime(a.dataDir)
			if err != nil {
				return err
			}
			s, err := store.Open(cmd.Context(), runtime.DatabaseURL, devstack.LocalUser)
			if err != nil { // what a killed one left behind helps nobody
				return &devstack.NotRunningError{Dir: a.dataDir, Err: err}
			}
			s.Close()
			for _, pair := range [][2]string{
				{"TRELLIS_URL", runtime.URL}, {databaseEnv, runtime.DatabaseURL},
				{"TENDRIL_QUEUE_URL", runtime.QueueURL}, {"TENDRIL_API_TOKEN", runtime.Token},
			} {
				if err := a.print("export %s=%s", pair[0], quoted(pair[1])); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// quoted is a text as one word of a POSIX shell.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// quote is quoted where it has to be.
func quote(text string) string {
	if text != "" && strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/") == "" {
		return text
	}
	return quoted(text)
}
