package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	logName = "postgres.log"
	// maxLog is the size at which the log is set aside at the next start.
	maxLog = 16 << 20
	// readyEvery is how often a starting server is asked whether it answers.
	readyEvery = 15 * time.Millisecond
)

// settings are the parameters of every server. Parameter values never reach
// the log: hashed tokens are among them.
func (s *Server) settings() map[string]string {
	return map[string]string{
		"listen_addresses":                  "",
		"unix_socket_directories":           `"` + strings.ReplaceAll(s.sockets, `"`, `""`) + `"`,
		"unix_socket_permissions":           "0700",
		"port":                              port,
		"max_connections":                   "100",
		"shared_buffers":                    "64MB",
		"fsync":                             "on",
		"timezone":                          "UTC",
		"log_timezone":                      "UTC",
		"log_checkpoints":                   "off",
		"log_parameter_max_length":          "0",
		"log_parameter_max_length_on_error": "0",
		"cluster_name":                      "tendril",
	}
}

// run starts the postmaster itself rather than pg_ctl, so that it is our
// child: its end is seen at once and it can be told to die with us.
func (s *Server) run(ctx context.Context, bin binaries, overrides map[string]string) error {
	settings := s.settings()
	if s.accepts(ctx, bin, "default_toast_compression", "lz4") {
		settings["default_toast_compression"] = "lz4"
	}
	maps.Copy(settings, overrides)
	args := []string{"-D", s.data()}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}

	log, err := openLog(s.dir)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := s.account.command(bin.postgres(), args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("starting PostgreSQL in %s: %w", s.dir, context.Cause(ctx))
	}
	ended, err := spawn(cmd, syscall.SIGINT)
	if err != nil {
		return fmt.Errorf("starting PostgreSQL in %s: %w", s.dir, err)
	}
	s.process = cmd.Process
	go func() { // ends with the process, which Stop waits for
		s.exit = <-ended
		close(s.done)
	}()
	return s.awaitReady(ctx)
}

// accepts reports whether the server knows a value of a parameter; some are a
// matter of how it was built.
func (s *Server) accepts(ctx context.Context, bin binaries, name, value string) bool {
	cmd := s.account.command(bin.postgres(), "-D", s.data(), "-c", name+"="+value, "-C", name)
	return runGroup(ctx, cmd) == nil
}

// awaitReady returns when the server answers as it will answer others.
func (s *Server) awaitReady(ctx context.Context) error {
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	for {
		err := s.ping(ctx)
		if err == nil {
			return nil
		}
		if refused, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(refused.Code, "28") {
			return fmt.Errorf("PostgreSQL in %s does not accept the password in %s: put back the one that it was made with", s.dir, filepath.Join(s.dir, "password"))
		}
		select {
		case <-s.done:
			return fmt.Errorf("PostgreSQL could not start in %s (%s)%s", s.dir, exitText(s.exit), logTail(s.dir))
		case <-ctx.Done():
			return fmt.Errorf("waiting for PostgreSQL in %s to answer: %w%s", s.dir, context.Cause(ctx), logTail(s.dir))
		case <-tick.C:
		}
	}
}

func (s *Server) ping(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// openLog opens the server's log to be appended to. It belongs to us, not to
// the server's account, which only inherits the descriptor.
func openLog(dir string) (*os.File, error) {
	path := filepath.Join(dir, logName)
	if info, err := os.Lstat(path); err == nil && info.Size() > maxLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("setting the PostgreSQL log aside: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the PostgreSQL log: %w", err)
	}
	return f, nil
}

// logTail is the end of the log, to be put behind an error's text.
func logTail(dir string) string {
	const most = 4 << 10
	path := filepath.Join(dir, logName)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	if err != nil {
		return "; see " + path
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil && info.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	}
	text, _ := io.ReadAll(io.LimitReader(f, most))
	return quote(string(text)) + "\n  (" + path + ")"
}

// quote sets a program's last lines under the sentence they explain.
func quote(output string) string {
	const most = 8
	lines := strings.Split(strings.TrimSpace(output), "\n")
	if len(lines) == 1 && lines[0] == "" {
		return ""
	}
	return ":\n  " + strings.Join(lines[max(0, len(lines)-most):], "\n  ")
}
