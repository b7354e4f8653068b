package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
)

func envCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:   "env",
		Short: "Print how to reach the running instance, as shell exports",
		Long: `Prints, as exports for a POSIX shell, how to reach the instance that runs on the
data directory: TRELLIS_URL and TRELLIS_TOKEN (as you), TRELLIS_DATABASE_URL (as the
database's owner), TENDRIL_QUEUE_URL and TENDRIL_API_TOKEN (as an agent). They hold
secrets; TRELLIS_TOKEN ends with the instance.`,
		Example: `  eval "$(trellis env)"
  psql "$TRELLIS_DATABASE_URL"
  curl -H "Authorization: Bearer $TRELLIS_TOKEN" "$TRELLIS_URL/api/v1/me"
  tendril run --name second --data-dir ./second`,
		Args: none,
		RunE: func(cmd *cobra.Command, _ []string) error {
			runtime, err := instance.ReadRuntime(a.dataDir)
			if err != nil {
				return err
			}
			s, err := client.New(targetOf(runtime).Options)
			if err != nil {
				return err
			}
			defer s.Close()
			if _, err := s.Me(cmd.Context()); err != nil { // what a killed one left behind helps nobody
				return &instance.NotRunningError{Dir: a.dataDir, Err: err}
			}
			exports := [][2]string{
				{urlEnv, runtime.URL}, {tokenEnv, runtime.APIToken}, {databaseEnv, runtime.DatabaseURL},
				{"TENDRIL_QUEUE_URL", runtime.QueueURL}, {"TENDRIL_API_TOKEN", runtime.Token},
			}
			if a.json() {
				all := map[string]string{}
				for _, pair := range exports {
					all[pair[0]] = pair[1]
				}
				return a.printJSON(all)
			}
			for _, pair := range exports {
				if err := a.print("export %s=%s", pair[0], quoted(pair[1])); err != nil {
					return err
				}
			}
			return nil
		},
	})
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
