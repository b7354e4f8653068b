package sql

import (
	"context"
	stdsql "database/sql"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/pressly/goose/v3/database"
)

// migration is one file.
type migration struct {
	version int64
	text    string
}

// read returns the migrations in their order.
func read(files embed.FS) ([]migration, error) {
	names, err := fs.Glob(files, "migrations/*.sql") // sorted, and numbered with zeros in front
	if err != nil {
		return nil, fmt.Errorf("list the embedded migrations: %w", err)
	}
	all := make([]migration, len(names))
	for i, name := range names {
		text, err := files.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read the embedded migrations: %w", err)
		}
		number, _, _ := strings.Cut(path.Base(name), "_")
		version, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read the embedded migrations: %s does not begin with a number: %w", name, err)
		}
		all[i] = migration{version, string(text)}
	}
	return all, nil
}

// body is the SQL of the migration, without what is said to goose.
func (m migration) body() string {
	var lines []string
	for line := range strings.Lines(m.text) {
		if !strings.HasPrefix(line, "-- +goose") {
			lines = append(lines, line)
		}
	}
	return strings.TrimSpace(strings.Join(lines, ""))
}

// Script is what brings a database from a migration (0: from nothing) to this
// program's newest, for people who run SQL in an editor. "" when that is where
// it is.
//
// It is one statement, so that it succeeds or fails as a whole whatever sends
// it: all at once or statement by statement, in a transaction or not. It leaves
// the records that goose leaves, takes the lock that Migrate takes, and passes
// over what has been run.
func Script(from int64) (string, error) {
	return script(from, false)
}

// script is Script; always: also where only functions are to be applied.
func script(from int64, always bool) (string, error) {
	all, err := read(migrations)
	if err != nil {
		return "", err
	}
	newest := all[len(all)-1].version
	if from > newest {
		return "", &TooNewError{Database: from, Program: newest}
	} else if from == newest && !always {
		return "", nil
	}
	table, err := makeVersionTable()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	_, _ = fmt.Fprintf(&b, scriptHead, from, newest, minServer, lockVersionTable, versionTable, table, minServer/10000)
	for _, m := range all {
		if m.version <= from {
			continue
		}
		quote := fmt.Sprintf("$migration_%d$", m.version)
		_, _ = fmt.Fprintf(&b, scriptStep, m.version, quote, m.body(), versionTable)
	}
	files, err := readFunctions(functions)
	if err != nil {
		return "", err
	}
	b.WriteString(functionsBlock(files))
	b.WriteString("END $tendril$;\n")
	return b.String(), nil
}

const scriptHead = `-- Brings a database to Tendril's migration %[2]d.
--
-- One statement, which succeeds or fails as a whole; what it finds done already
-- it passes over. Run it as the role that is to own the schema.
DO $tendril$
DECLARE
  v_version bigint;
BEGIN
  IF current_setting('server_version_num')::int < %[3]d THEN
    RAISE EXCEPTION 'this PostgreSQL is version %%; %[7]d or newer is needed', current_setting('server_version');
  END IF;
%[6]s  %[4]s; -- one at a time, trellis migrate included
  SELECT coalesce(max(version_id), 0) INTO v_version FROM %[5]s WHERE is_applied;
  IF v_version > %[2]d THEN
    RAISE EXCEPTION 'the database is at migration %%, this script knows only up to %[2]d', v_version
      USING HINT = 'print the script with a trellis at least as new as the one that migrated the database last';
  ELSIF v_version < %[1]d THEN
    RAISE EXCEPTION 'the database is at migration %%, this script begins after %[1]d', v_version
      USING HINT = 'print the script for this database, or the whole of it';
  END IF;
`

const scriptStep = `
  IF v_version < %[1]d THEN EXECUTE %[2]s
%[3]s
%[2]s;
    INSERT INTO %[4]s (version_id, is_applied) VALUES (%[1]d, true);
  END IF;
`

// createVersionTable is the statement by which goose makes its table.
func createVersionTable() (string, error) {
	store, err := database.NewStore(database.DialectPostgres, versionTable)
	if err != nil {
		return "", fmt.Errorf("set up the migration store: %w", err)
	}
	var said listener
	if err := store.CreateVersionTable(context.Background(), &said); err != nil {
		return "", fmt.Errorf("ask how the version table is made: %w", err)
	}
	return said.statement, nil
}

// listener hears a statement instead of running it.
type listener struct {
	database.DBTxConn
	statement string
}

// ExecContext implements database.DBTxConn.
func (l *listener) ExecContext(_ context.Context, statement string, _ ...any) (stdsql.Result, error) {
	l.statement = statement
	return nil, nil
}
