package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/sql"
)

func (a *app) migrateCommand() *cobra.Command {
	var printed, acceptNewer bool
	var out format
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring a database up to this program's schema",
		Long: `Brings a database (PostgreSQL 15 or later, a Supabase project included) up to this
program's schema. Running it again is harmless; a database that is newer than
this program is left as it is, and refused. --accept-newer takes it for done: for
what migrates before each start of "trellis serve", which serves a newer database,
so that going back to this program is possible.

It also has the database use what its platform offers: tables are added to the
publication of Supabase's Realtime, and pg_cron, where it is installed, gives up
runs whose agent is gone. What only another role may do is named.

--print writes SQL instead of running it, for an editor such as Supabase's: what
the database given by --database-url or TRELLIS_DATABASE_URL still needs (nothing
in it is changed), or everything when none is given. The script does all or
nothing, and does nothing to a database that has had it.`,
		Example: `  trellis migrate --database-url postgres://me@db.example/tendril
  trellis migrate --print > tendril.sql
  trellis migrate --print --database-url postgres://me@db.example/tendril | less`,
		Args: none,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			switch {
			case printed && acceptNewer:
				return wrongUsage("--print and --accept-newer: give one of them")
			case printed:
				return a.printMigrations(ctx)
			}
			return a.migrate(ctx, acceptNewer, out)
		},
	}
	cmd.Flags().BoolVar(&printed, "print", false, "write what is still to run as SQL, and run nothing")
	cmd.Flags().BoolVar(&acceptNewer, "accept-newer", false, "leave a database that is newer than this program as it is, and say so")
	addFormat(cmd, &out)
	return cmd
}

func (a *app) migrate(ctx context.Context, acceptNewer bool, out format) error {
	url, err := a.database()
	if err != nil {
		return err
	}
	ran, err := sql.Migrate(ctx, url)
	if newer, ok := errors.AsType[*sql.TooNewError](err); ok && acceptNewer {
		if out == "json" {
			return a.printJSON(map[string]any{"migrations_applied": 0, "left_to_others": []sql.Left{}, "newer": newer.Database})
		}
		return a.print("The database is at migration %d, newer than this program's %d; it is left as it is.", newer.Database, newer.Program)
	}
	if err != nil {
		return unreached("migrate the database", err)
	}
	left, err := sql.UsePlatform(ctx, url)
	if err != nil {
		return unreached("migrate the database", err)
	}
	broad, err := sql.BroadPublications(ctx, url)
	if err != nil {
		return unreached("migrate the database", err)
	}
	if out == "json" {
		return a.printJSON(map[string]any{"migrations_applied": ran, "left_to_others": append([]sql.Left{}, left...), "broad_publications": append([]sql.Publication{}, broad...)})
	}
	switch ran {
	case 0:
		err = a.print("The database is up to date.")
	case 1:
		err = a.print("The database is up to date; 1 migration was applied.")
	default:
		err = a.print("The database is up to date; %d migrations were applied.", ran)
	}
	for _, l := range left {
		a.say("Only %s may run this; then migrate again:\n  %s;", l.RunAs, l.Statement)
	}
	for _, p := range broad {
		a.say("The publication %q covers %s: when a row is deleted, Supabase's Realtime tells every subscriber, also those who may not read the row. Name the tables instead (docs/SUPABASE.md).", p.Name, p.Covers)
	}
	return err
}

// useOffers is the end of each script: its rows are what an editor shows.
const useOffers = `
-- Uses what the platform offers (Realtime, pg_cron), and shows what only another
-- role may run. To be run again when it has come to offer more.
SELECT run_as, statement FROM tendril.fit_platform();`

func (a *app) printMigrations(ctx context.Context) error {
	url, err := a.givenDatabase()
	if err != nil {
		return err
	}
	if url == "" {
		script, err := sql.Script(0)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(a.out, "%s%s\n", script, useOffers) // as it is, for psql
		return err
	}
	pending, err := sql.Inspect(ctx, url)
	if err != nil {
		return unreached("ask the database what it needs", err)
	}
	if pending.Script != "" {
		return a.print("%s%s", pending.Script, useOffers)
	}
	if err := a.print("-- The database is at migration %d, the newest that this program has.\n%s", pending.Version, useOffers); err != nil {
		return err
	}
	for _, l := range pending.Left {
		if err := a.print("\n-- Only %s may run this:\n%s;", l.RunAs, l.Statement); err != nil {
			return err
		}
	}
	return nil
}

// unreached tells a database that is away from one that refuses.
func unreached(doing string, err error) error {
	if _, connecting := errors.AsType[*pgconn.ConnectError](err); connecting {
		return &store.UnreachableError{Doing: doing, Err: err}
	}
	return err
}
