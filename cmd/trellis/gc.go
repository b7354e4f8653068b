package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/retention"
)

// gcFlags are what somebody wants cleaned up, and how.
type gcFlags struct {
	olderThan             string
	dryRun, compact, full bool
	out                   format
}

func (a *app) gcCommand() *cobra.Command {
	var f gcFlags
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Archive old logs now, and give their room back",
		Long: `Archives the logs of provisions that ended long ago: each becomes one compressed row
for every 4 MiB of its text, and its rows are removed. Whoever reads it notices nothing.
It also deletes the logs that are older than tendril.settings.log_delete_after, if that
is set, and has the database use the room again (VACUUM).

"trellis serve", "trellis up" and pg_cron do the same, a little at a time; this is for
much at once, such as the first time. It asks no server but opens the database that
--database-url or TRELLIS_DATABASE_URL names, as its owner, and not through a pooler in
transaction mode. It may be interrupted: what is done stays done.

The room is used again by new logs, but the file does not get smaller by itself, for
young rows lie at its end. --compact moves them forward, bit by bit, while everything
goes on, and builds the key anew; it is for once, after the first time. --full writes
the table anew: quicker where little is left, and the smallest, but meanwhile (some
seconds for each GB that is left) nobody reads a log and agents keep their lines.`,
		Example: `  trellis gc --dry-run
  trellis gc --compact --database-url postgres://owner@db.example/tendril
  trellis gc --older-than "30 days" -o json`,
		Args: none,
		RunE: a.asOwner(func(ctx context.Context, url string) error { return a.gc(ctx, url, f) }),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.olderThan, "older-than", "", `how long ago a provision has ended, such as 48h or "30 days"; default: tendril.settings.log_archive_after (7 days)`)
	flags.BoolVar(&f.dryRun, "dry-run", false, "say how much would be archived, and change nothing")
	flags.BoolVar(&f.compact, "compact", false, "give the room back to the disk while everything goes on")
	flags.BoolVar(&f.full, "full", false, "give the room back by writing the table anew, which keeps everybody waiting")
	addFormat(cmd, &f.out)
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

func (a *app) gc(ctx context.Context, url string, f gcFlags) error {
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
		return a.answer(f.out, map[string]any{"due": due, "bytes_before": sizes}, "%s with %s (about %s of text) would be archived. Logs take %s now.",
			counted(due.Logs, "log"), counted(due.Rows, "row"), byteSize(due.Bytes), byteSize(sizes.Total()))
	}
	done := collected{Before: sizes}
	began := time.Now()
	if err := a.collect(ctx, s, f, due, &done); err != nil {
		a.say("Until then %s were archived; run it again to go on.", counted(done.Archived.Logs, "log"))
		return gcRefusal(err)
	}
	done.Seconds = time.Since(began).Round(time.Millisecond).Seconds()
	return a.answer(f.out, done, "Archived %s with %s (%s of text), deleted %s, in %s. Logs took %s and take %s now.",
		counted(done.Archived.Logs, "log"), counted(done.Archived.Rows, "row"), byteSize(done.Archived.Bytes), counted(done.Deleted, "log"),
		seconds(time.Since(began)), byteSize(done.Before.Total()), byteSize(done.After.Total()))
}

// collect does all that was asked for, and shows how far it is.
func (a *app) collect(ctx context.Context, s *retention.Session, f gcFlags, due retention.Due, done *collected) (err error) {
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
		tell("writing the table anew")
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
