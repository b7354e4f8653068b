package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// dataVersion returns the major version that a PGDATA was made with, 0 when
// there is none yet.
func dataVersion(data string) (int, error) {
	path := filepath.Join(data, "PG_VERSION")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading the version of the database: %w", err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("%s does not hold a PostgreSQL version", path)
	}
	return major, nil
}

// initialise makes PGDATA. It works in data.new and renames, so that a data
// directory is either whole or not there.
func (s *Server) initialise(ctx context.Context, bin binaries, unsynced bool) error {
	if _, err := os.Lstat(s.data()); err == nil {
		return fmt.Errorf("%s exists but is not a PostgreSQL database (it has no PG_VERSION): move it away or choose another data directory", s.data())
	}
	fresh := s.data() + ".new"
	pwfile := filepath.Join(s.dir, "password.init")
	if err := errors.Join(os.RemoveAll(fresh), os.Mkdir(fresh, 0o700), s.account.own(fresh)); err != nil {
		return fmt.Errorf("making %s: %w", fresh, err)
	}
	// initdb reads the password under its own account, hence a copy.
	defer func() { _ = os.Remove(pwfile) }()
	if err := errors.Join(writeSecret(pwfile, s.password), s.account.own(pwfile)); err != nil {
		return fmt.Errorf("handing the password to initdb: %w", err)
	}

	args := []string{
		"--pgdata=" + fresh, "--username=" + superuser, "--pwfile=" + pwfile,
		"--auth=scram-sha-256", "--encoding=UTF8", "--no-instructions",
	}
	if unsynced {
		args = append(args, "--no-sync")
	}
	out, err := s.initdb(ctx, bin, append(args, "--locale=C.UTF-8"))
	if err != nil && strings.Contains(out, "locale") {
		out, err = s.initdb(ctx, bin, append(args, "--locale=C")) // not every system has C.UTF-8
	}
	if err != nil {
		_ = os.RemoveAll(fresh)
		if ctx.Err() != nil {
			return fmt.Errorf("initialising the database in %s: %w", s.dir, context.Cause(ctx))
		}
		return fmt.Errorf("initdb could not initialise the database in %s (%s)%s", s.dir, exitText(err), quote(out))
	}
	if err := os.Rename(fresh, s.data()); err != nil {
		return fmt.Errorf("putting the new database in place: %w", err)
	}
	return nil
}

func (s *Server) initdb(ctx context.Context, bin binaries, args []string) (string, error) {
	var out bytes.Buffer
	cmd := s.account.command(bin.initdb(), args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := runGroup(ctx, cmd)
	return out.String(), err
}
