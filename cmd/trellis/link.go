package main

import (
	"cmp"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/controlplane/signin"
	"github.com/tendril-run/tendril/internal/controlplane/store"
)

func (a *app) linkCommand() *cobra.Command {
	var publicURL string
	var out format
	cmd := &cobra.Command{
		Use:   "link",
		Short: "Print a one-time link that signs a browser in",
		Long: `Prints a link that signs one browser in to the console, once and within 15
minutes, as the local user: the one that "trellis up" and
"trellis admin" act as. Whoever has the link until then can use it.

Without --database-url it is for the instance that runs on the data directory.
With it, it is for "trellis serve" on that database, and a way in when the issuer
of identities is away; the local user sees there what they are a member of.`,
		Example: `  trellis link
  trellis link --database-url postgres://me@db.example/tendril \
      --public-url https://tendril.example`,
		Args: none,
		RunE: func(cmd *cobra.Command, _ []string) error {
			given, err := a.givenDatabase()
			if err != nil {
				return err
			}
			url, database := publicURL, given
			if runtime, err := instance.ReadRuntime(a.dataDir); database == "" && err != nil {
				return err
			} else if database == "" || database == runtime.DatabaseURL {
				url, database = cmp.Or(publicURL, runtime.BrowserURL, runtime.URL), runtime.DatabaseURL
			}
			if url == "" {
				return wrongUsage("--public-url is missing: how browsers reach the server of that database, such as https://tendril.example")
			}
			d, err := store.Connect(cmd.Context(), database, 1)
			if unreachable, away := errors.AsType[*store.UnreachableError](err); away && given == "" {
				return &instance.NotRunningError{Dir: a.dataDir, Err: unreachable}
			}
			if err != nil {
				return err
			}
			defer d.Close()
			link, err := signin.NewLink(cmd.Context(), d, strings.TrimRight(url, "/"), instance.LocalUser)
			if err != nil {
				return err
			}
			return a.answer(out, map[string]string{"url": link}, "%s", link)
		},
	}
	cmd.Flags().StringVar(&publicURL, "public-url", a.getenv("TRELLIS_PUBLIC_URL"), "how browsers reach the server (TRELLIS_PUBLIC_URL)")
	addFormat(cmd, &out)
	return cmd
}
