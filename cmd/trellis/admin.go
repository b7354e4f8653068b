package main

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/controlplane/owner"
	"github.com/tendril-run/tendril/internal/controlplane/problem"
)

// localName is what the user is called that trellis up and admin act as.
const localName = "Local user"

func adminCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "admin",
		Short: "Make the first organisation and token, in the database",
		Long: `What only who owns the database can do, before anybody can log in to a server or when
nobody can: it asks no server but opens the database that --database-url or
TRELLIS_DATABASE_URL names, as its owner.`,
		Example: `  trellis admin init --database-url postgres://owner@db.example/tendril`,
		Args:    verb,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(adminInitCommand(a), adminTokenCommand(a))
	return cmd
}

func adminInitCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:   "init",
		Short: "Make the first organisation of a migrated database",
		Long: `Makes the first organisation of a migrated database, named default, with a local user
as its admin. Where there is an organisation, nothing is changed. It is not needed where
"trellis serve" has an issuer of identities and names the first admin.`,
		Example: `  trellis admin init --database-url postgres://owner@db.example/tendril
  trellis admin token --database-url postgres://owner@db.example/tendril |
      trellis login https://trellis.example --token-file -`,
		Args: none,
		RunE: asOwner(a, func(ctx context.Context, url string) error {
			made, err := owner.Init(ctx, url, instance.LocalUser, localName)
			if err != nil {
				return err
			}
			answer := map[string]any{"made": made, "admin": instance.LocalUser}
			if !made {
				return a.answer(nil, answer, "There is an organisation already; nothing was changed.")
			}
			return a.answer(nil, answer, "Made the first organisation, named default. Its admin is the local user: trellis admin token prints a token of theirs, for trellis login.")
		}),
	})
}

func adminTokenCommand(a *app) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Print an API token of the local user; one of that name ends",
		Long: `Prints an API token of the local user, the admin that "trellis admin init" makes. It is
good for the API of any server on that database until it is revoked; one of the same
name that was made before ends.`,
		Example: `  trellis admin token --database-url postgres://owner@db.example/tendril |
      trellis login https://trellis.example --token-file -`,
		Args: none,
		RunE: asOwner(a, func(ctx context.Context, url string) error {
			token, err := owner.Token(ctx, url, instance.LocalUser, name)
			return a.answer(err, map[string]string{"name": name, "token": token}, "%s", token)
		}),
	}
	cmd.Flags().StringVar(&name, "name", "trellis admin token", "what to call it, for the list of tokens")
	addFormat(a, cmd)
	return cmd
}

// asOwner runs a verb on the database itself.
func asOwner(a *app, do func(ctx context.Context, url string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		return untilInterrupted(a, cmd, func(ctx context.Context) error {
			url, err := databaseOf(a)
			if err != nil {
				return err
			}
			return do(ctx, url)
		})
	}
}

func linkCommand(a *app) *cobra.Command {
	var publicURL string
	cmd := &cobra.Command{
		Use:   "link",
		Short: "Print a one-time link that signs a browser in",
		Long: `Prints a link that signs one browser in to the console, once and within 15
minutes, as the local user: the one that "trellis up" and
"trellis admin" act as. Anyone who has the link until then can use it.

Without --database-url it is for the instance that runs on the data directory.
With it, it is for "trellis serve" on that database, and a way in when the issuer
of identities is away; the local user sees there what they are a member of.`,
		Example: `  trellis link
  trellis link --database-url postgres://me@db.example/tendril \
      --public-url https://tendril.example`,
		Args: none,
		RunE: func(cmd *cobra.Command, _ []string) error {
			given, err := givenDatabase(a)
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
			link, err := owner.Link(cmd.Context(), database, strings.TrimRight(url, "/"), instance.LocalUser)
			if unreachable, away := errors.AsType[*problem.UnreachableError](err); away && given == "" {
				return &instance.NotRunningError{Dir: a.dataDir, Err: unreachable}
			}
			if err != nil {
				return err
			}
			return a.answer(nil, map[string]string{"url": link}, "%s", link)
		},
	}
	cmd.Flags().StringVar(&publicURL, "public-url", a.getenv("TRELLIS_PUBLIC_URL"), "how browsers reach the server (TRELLIS_PUBLIC_URL)")
	addFormat(a, cmd)
	return cmd
}
