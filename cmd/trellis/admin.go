package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/controlplane/signin"
	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// localName is what the user is called that trellis up and admin act as.
const localName = "Local user"

func (a *app) adminCommand() *cobra.Command {
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
	cmd.AddCommand(a.adminInitCommand(), a.adminTokenCommand())
	return cmd
}

func (a *app) adminInitCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make the first organisation of a migrated database",
		Long: `Makes the first organisation of a migrated database, named default, with a local user
as its admin. Where there is an organisation, nothing is changed. It is not needed where
"trellis serve" has an issuer of identities and names the first admin.`,
		Example: `  trellis admin init --database-url postgres://owner@db.example/tendril
  trellis admin token --database-url postgres://owner@db.example/tendril |
      trellis login https://trellis.example --token-file -`,
		Args: none,
		RunE: a.asOwner(func(ctx context.Context, url string) error {
			made, err := store.Bootstrap(ctx, url, instance.LocalUser)
			if err != nil {
				return err
			}
			answer := map[string]any{"made": made, "admin": instance.LocalUser}
			if !made {
				return a.answer(out, answer, "There is an organisation already; nothing was changed.")
			}
			d, err := store.Connect(ctx, url, 1)
			if err != nil {
				return err
			}
			defer d.Close()
			if err := signin.Name(ctx, d, instance.LocalUser, localName); err != nil {
				return err
			}
			return a.answer(out, answer, "Made the first organisation, named default. Its admin is the local user: trellis admin token prints a token of theirs, for trellis login.")
		}),
	}
	addFormat(cmd, &out)
	return cmd
}

func (a *app) adminTokenCommand() *cobra.Command {
	var name string
	var out format
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Print an API token of the local user; one of that name ends",
		Long: `Prints an API token of the local user, the admin that "trellis admin init" makes. It is
good for the API of any server on that database until it is revoked; one of the same
name that was made before ends.`,
		Example: `  trellis admin token --database-url postgres://owner@db.example/tendril |
      trellis login https://trellis.example --token-file -`,
		Args: none,
		RunE: a.asOwner(func(ctx context.Context, url string) error {
			d, err := store.Connect(ctx, url, 1)
			if err != nil {
				return err
			}
			defer d.Close()
			token, err := signin.NewToken(ctx, d, instance.LocalUser, name)
			if err != nil {
				return err
			}
			return a.answer(out, map[string]string{"name": name, "token": token}, "%s", token)
		}),
	}
	cmd.Flags().StringVar(&name, "name", "trellis admin token", "what to call it, for the list of tokens")
	addFormat(cmd, &out)
	return cmd
}

// asOwner runs a verb on the database itself.
func (a *app) asOwner(do func(ctx context.Context, url string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		return a.untilInterrupted(cmd, func(ctx context.Context) error {
			url, err := a.database()
			if err != nil {
				return err
			}
			return do(ctx, url)
		})
	}
}
