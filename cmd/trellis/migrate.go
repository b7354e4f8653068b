package main

import (
	"context"
	"errors"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/sql"
)

func (a *app) migrateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "migrate",
		Short: "Bring a database up to this program's schema",
		Long: `Brings a database (PostgreSQL 15 or later, a Supabase project included) up to this
program's schema. Running it again is harmless; a database that is newer than
this program is left as it is.`,
		Example: `  trellis migrate --database-url postgres://me@db.example/tendril`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return a.migrate(ctx)
		},
	}
}

func (a *app) migrate(ctx context.Context) error {
	url, err := a.database()
	if err != nil {
		return err
	}
	ran, err := sql.Migrate(ctx, url)
	if _, connecting := errors.AsType[*pgconn.ConnectError](err); connecting {
		return &store.UnreachableError{Doing: "migrate the database", Err: err}
	}
	switch {
	case err != nil:
		return err
	case ran == 0:
		return a.print("The database is up to date.")
	}
	return a.print("The database is up to date; %d migrations were applied.", ran)
}
