package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/controlplane/retention"
	"github.com/tendril-run/tendril/internal/secretfile"
	"github.com/tendril-run/tendril/sql"
)

func migrateCommand(a *app) *cobra.Command {
	var printed, acceptNewer bool
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
				return printMigrations(ctx, a)
			}
			return runMigrate(ctx, a, acceptNewer)
		},
	}
	cmd.Flags().BoolVar(&printed, "print", false, "write what is still to run as SQL, and run nothing")
	cmd.Flags().BoolVar(&acceptNewer, "accept-newer", false, "leave a database that is newer than this program as it is, and say so")
	addFormat(a, cmd)
	return cmd
}

func runMigrate(ctx context.Context, a *app, acceptNewer bool) error {
	url, err := databaseOf(a)
	if err != nil {
		return err
	}
	ran, err := sql.Migrate(ctx, url)
	if newer, ok := errors.AsType[*sql.TooNewError](err); ok && acceptNewer {
		if a.json() {
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
	if a.json() {
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

func printMigrations(ctx context.Context, a *app) error {
	url, err := givenDatabase(a)
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
		return &problem.UnreachableError{Doing: doing, Err: err}
	}
	return err
}

const (
	databaseEnv     = "TRELLIS_DATABASE_URL"
	databaseFileEnv = "TRELLIS_DATABASE_URL_FILE"
)

// givenDatabase is the database that the person named, "" for none. It is for
// those who run one; everybody else asks a server. What the command line says
// goes before the environment.
func givenDatabase(a *app) (string, error) {
	if a.databaseURL != "" || a.databaseURLFile != "" {
		return oneDatabase("--database-url", a.databaseURL, "--database-url-file", a.databaseURLFile)
	}
	return databaseOfEnvironment(a)
}

// databaseOfEnvironment is givenDatabase without what the command line says.
func databaseOfEnvironment(a *app) (string, error) {
	return oneDatabase(databaseEnv, a.getenv(databaseEnv), databaseFileEnv, a.getenv(databaseFileEnv))
}

// oneDatabase is the URL as it stands, or that of the file.
func oneDatabase(from, url, fromFile, file string) (string, error) {
	switch {
	case url != "" && file != "":
		return "", wrongUsage("%s and %s: give one of them", from, fromFile)
	case file == "":
		return url, nil
	}
	text, err := secretfile.Read(file)
	if err != nil {
		return "", fmt.Errorf("%s: the file %s %w", fromFile, file, err)
	}
	// The error must not show it: it has a password in it, or is one by mistake, of
	// which nobody would know what to take out.
	url = strings.TrimSpace(text)
	if !strings.HasPrefix(url, "postgres://") && !strings.HasPrefix(url, "postgresql://") || strings.ContainsFunc(url, unicode.IsControl) {
		return "", fmt.Errorf("%s: the file %s must hold one line, postgres://USER:PASSWORD@HOST/DATABASE", fromFile, file)
	}
	return url, nil
}

// databaseOf is the URL of the one named, else of the running instance.
func databaseOf(a *app) (string, error) {
	if url, err := givenDatabase(a); url != "" || err != nil {
		return url, err
	}
	runtime, err := instance.ReadRuntime(a.dataDir)
	if err != nil {
		return "", fmt.Errorf("%w; or name a database with --database-url", err)
	}
	return runtime.DatabaseURL, nil
}

// databaseSource is what of the environment names the database, for messages.
func databaseSource(a *app) string {
	if a.getenv(databaseEnv) != "" {
		return databaseEnv
	}
	return databaseFileEnv
}

// gcFlags are what somebody wants cleaned up, and how.
type gcFlags struct {
	olderThan             string
	dryRun, compact, full bool
}

func gcCommand(a *app) *cobra.Command {
	var f gcFlags
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Archive old logs now, and give their room back",
		Long: `Archives the logs of runs that ended long ago: each becomes one compressed row
for every 4 MiB of its text, and its rows are removed. Readers notice nothing.
It also deletes the logs that are older than tendril.settings.log_delete_after, if that
is set, and has the database use the room again (VACUUM).

"trellis serve", "trellis up" and pg_cron do the same, a little at a time; this is for
much at once, such as the first time. It asks no server but opens the database that
--database-url or TRELLIS_DATABASE_URL names, as its owner, and not through a pooler in
transaction mode. It may be interrupted: what is done stays done.

The room is used again by new logs, but the file does not shrink automatically, for
young rows lie at its end. --compact moves them forward, bit by bit, while everything
goes on, and rebuilds the key; it is for once, after the first time. --full rewrites
the table: quicker where little is left, and the smallest, but meanwhile (some
seconds for each GB that is left) nobody reads a log and agents keep their lines.`,
		Example: `  trellis gc --dry-run
  trellis gc --compact --database-url postgres://owner@db.example/tendril
  trellis gc --older-than "30 days" -o json`,
		Args: none,
		RunE: asOwner(a, func(ctx context.Context, url string) error { return cleanUp(ctx, a, url, f) }),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.olderThan, "older-than", "", `how long ago a run has ended, such as 48h or "30 days"; default: tendril.settings.log_archive_after (7 days)`)
	flags.BoolVar(&f.dryRun, "dry-run", false, "say how much would be archived, and change nothing")
	flags.BoolVar(&f.compact, "compact", false, "give the room back to the disk while everything goes on")
	flags.BoolVar(&f.full, "full", false, "give the room back by rewriting the table, which keeps everybody waiting")
	addFormat(a, cmd)
	return cmd
}

// collected is what was cleaned up.
type collected struct {
	Archived retention.Archived `json:"archived"`
	Deleted  int64              `json:"deleted_logs"`
	Moved    int64              `json:"moved_rows"`
	Before   retention.Sizes    `json:"bytes_before"`
	After    retention.Sizes    `json:"bytes_after"`
	Seconds  float64            `json:"seconds"`
}

func cleanUp(ctx context.Context, a *app, url string, f gcFlags) error {
	if f.compact && f.full || f.dryRun && (f.compact || f.full) {
		return wrongUsage("--dry-run, --compact and --full: give one of them")
	}
	s, err := retention.Open(ctx, url)
	if err != nil {
		return unreached("clean up old logs", err)
	}
	defer s.Close(context.WithoutCancel(ctx)) //nolint:errcheck // what it did is committed
	due, err := s.Due(ctx, f.olderThan)
	if err != nil {
		return gcRefusal(err)
	}
	sizes, err := s.Sizes(ctx)
	if err != nil {
		return gcRefusal(err)
	}
	if f.dryRun {
		return a.answer(nil, map[string]any{"due": due, "bytes_before": sizes}, "%s with %s (about %s of text) would be archived. Logs take %s now.",
			counted(due.Logs, "log"), counted(due.Rows, "row"), byteSize(due.Bytes), byteSize(sizes.Total()))
	}
	done := collected{Before: sizes}
	began := time.Now()
	if err := collect(ctx, a, s, f, due, &done); err != nil {
		a.say("Until then %s were archived; run it again to go on.", counted(done.Archived.Logs, "log"))
		return gcRefusal(err)
	}
	done.Seconds = time.Since(began).Round(time.Millisecond).Seconds()
	return a.answer(nil, done, "Archived %s with %s (%s of text), deleted %s, in %s. Logs took %s and take %s now.",
		counted(done.Archived.Logs, "log"), counted(done.Archived.Rows, "row"), byteSize(done.Archived.Bytes), counted(done.Deleted, "log"),
		seconds(time.Since(began)), byteSize(done.Before.Total()), byteSize(done.After.Total()))
}

// collect does all that was asked for, and shows how far it is.
func collect(ctx context.Context, a *app, s *retention.Session, f gcFlags, due retention.Due, done *collected) (err error) {
	screen := newScreen(a.err)
	defer func() { _ = screen.show("") }() // progress is worth no failure
	tell := func(format string, args ...any) { _ = screen.show("… " + fmt.Sprintf(format, args...)) }
	tell("archiving %s", counted(due.Logs, "log"))
	if done.Archived, err = s.Archive(ctx, f.olderThan, func(so retention.Archived) {
		done.Archived = so
		tell("archived %s with %d of about %s", counted(so.Logs, "log"), so.Rows, counted(due.Rows, "row"))
	}); err != nil {
		return err
	}
	if done.Deleted, err = s.Delete(ctx); err != nil {
		return err
	}
	tell("having the room used again")
	if err := s.Vacuum(ctx); err != nil {
		return err
	}
	switch {
	case f.compact:
		tell("giving room back")
		if done.Moved, err = s.Compact(ctx, func(moved int64) { tell("giving room back: %s moved", counted(moved, "row")) }); err != nil {
			return err
		}
	case f.full:
		tell("rewriting the table")
		if err := s.Rewrite(ctx); err != nil {
			return err
		}
	}
	done.After, err = s.Sizes(ctx)
	return err
}

// gcRefusal says what to do about what the database refuses.
func gcRefusal(err error) error {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case !ok:
		return unreached("clean up old logs", err)
	case refused.Code == "22007" || refused.Code == "22008" || refused.Code == "22015":
		return wrongUsage(`--older-than: %s; give a time such as 48h or "30 days"`, refused.Message)
	case refused.Code == "42P01" || refused.Code == "42883" || refused.Code == "42703" || refused.Code == "3F000":
		return fmt.Errorf("clean up old logs: the database is not at this program's migration (%s); run `trellis migrate` first", refused.Message)
	case refused.Code == "42501":
		return fmt.Errorf("clean up old logs: %s; connect as the role that has migrated the database", refused.Message)
	}
	return fmt.Errorf("clean up old logs: %w", err)
}

// counted is a number of things: "1 log", "3 logs".
func counted(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func byteSize(n int64) string {
	for _, unit := range []struct {
		name string
		size int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= unit.size {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(unit.size), unit.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}
