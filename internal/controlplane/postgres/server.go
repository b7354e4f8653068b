package postgres

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/dirlock"
	"github.com/tendril-run/tendril/internal/durable"
)

const (
	superuser = "postgres"
	// port names the socket file; nothing listens on it.
	port = "5432"

	// fastLimit is how long Stop lets a fast shutdown take: sessions are cut
	// at once, so what remains is one checkpoint.
	fastLimit = 30 * time.Second
	// quitLimit is how long an immediate shutdown may take. The postmaster
	// itself kills children that do not obey within 5 s.
	quitLimit = 8 * time.Second
)

// Options says where a server lives and how it runs.
type Options struct {
	// DataDir holds everything of the server; it is made when missing. As root
	// it must be reachable for the account that PostgreSQL runs as.
	DataDir string
	// BinDir has initdb and postgres. Empty: they are looked for on the
	// machine, then downloaded into DataDir.
	BinDir string
	// Settings are server parameters that take precedence over the package's
	// own. They are visible in the process list. With fsync=off, initdb does
	// not sync either.
	Settings map[string]string
	// Repository is the npm registry that binaries are downloaded from;
	// empty: $TENDRIL_POSTGRES_REPOSITORY, else DefaultRepository.
	Repository string
	// Log is told, a line at a time, what takes long (a download, a first
	// start). May be nil.
	Log io.Writer

	builds map[int]build // for tests
}

func (o Options) say(format string, args ...any) {
	if o.Log != nil {
		_, _ = fmt.Fprintf(o.Log, format+"\n", args...)
	}
}

// Server is a running PostgreSQL server. Whoever started it must call Stop,
// even when Done says that it has ended by itself.
type Server struct {
	dir      string
	account  *account
	password string
	sockets  string // the socket's directory
	lock     *dirlock.Lock

	process *os.Process
	done    chan struct{}
	exit    error // how the process ended; valid once done is closed

	stopping chan struct{} // closed by the first Stop
	stop     sync.Once
	cleaned  sync.Once
}

// Start runs the server of o.DataDir, which it initialises when new, and
// returns when the server answers. The context bounds the start only. A
// directory that another Server holds is refused with a *dirlock.InUseError.
func Start(ctx context.Context, o Options) (*Server, error) {
	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return nil, fmt.Errorf("finding the PostgreSQL data directory %s: %w", o.DataDir, err)
	}
	account, err := serviceAccount()
	if err != nil {
		return nil, err
	}
	if err := account.makeDataDir(dir); err != nil {
		return nil, err
	}
	lock, err := dirlock.Take(dir, dirlock.Self("PostgreSQL"))
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w; stop that one, or choose another data directory", err)
	}
	s := &Server{
		dir: dir, account: account, lock: lock,
		done: make(chan struct{}), stopping: make(chan struct{}),
	}
	if err := s.start(ctx, o); err != nil {
		if s.process != nil {
			_ = s.Stop(ctx)
		}
		s.cleanUp()
		return nil, err
	}
	return s, nil
}

func (s *Server) start(ctx context.Context, o Options) error {
	if err := stopOrphans(ctx, s.data()); err != nil {
		return err
	}
	major, err := dataVersion(s.data())
	if err != nil {
		return err
	}
	bin, err := locate(ctx, o, installed(ctx), s.dir, major)
	if err != nil {
		return err
	}
	if err := s.account.canEnter(bin.dir); err != nil {
		return err
	}
	if s.password, err = password(s.dir, major == 0); err != nil {
		return err
	}
	if s.sockets, err = s.makeSocketDir(); err != nil {
		return err
	}
	if major == 0 {
		o.say("Initialising a PostgreSQL %s database in %s", bin.version, s.dir)
		if err := s.initialise(ctx, bin, o.Settings["fsync"] == "off"); err != nil {
			return err
		}
	}
	return s.run(ctx, bin, o.Settings)
}

// data is PGDATA.
func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// URL returns the superuser's connection string for a database. It holds the
// password.
func (s *Server) URL(database string) string {
	u := url.URL{
		Scheme: "postgres",
		User:   url.UserPassword(superuser, s.password),
		Path:   "/" + database,
		// A blank as %20: pgx takes the + that Encode writes for a plus.
		RawQuery: strings.ReplaceAll(url.Values{"host": {s.sockets}, "port": {port}}.Encode(), "+", "%20"),
	}
	return u.String()
}

// Done is closed when the server has ended, for whatever reason.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err says why the server ended without being stopped; nil while it runs and
// after Stop.
func (s *Server) Err() error {
	select {
	case <-s.done:
	default:
		return nil
	}
	select {
	case <-s.stopping:
		return nil
	default:
		return fmt.Errorf("PostgreSQL in %s ended unexpectedly (%s)%s", s.dir, ExitText(s.exit), logTail(s.dir))
	}
}

// Stop ends the server and waits for it: a fast shutdown, which cuts the
// sessions and loses nothing, then, when the context ends or 30 s are over, an
// immediate one, and SIGKILL at last; the error says that this was needed.
// Further calls wait for the same end.
func (s *Server) Stop(ctx context.Context) error {
	s.stop.Do(func() { close(s.stopping) })
	defer s.cleanUp()
	if s.ended(ctx, syscall.SIGINT, fastLimit) {
		return nil
	}
	// The rest is not for the caller's context to cut short: a server left
	// behind would be worse than a late return.
	rest := context.WithoutCancel(ctx)
	if s.ended(rest, syscall.SIGQUIT, quitLimit) {
		return errors.New("PostgreSQL did not finish a fast shutdown in time and was shut down at once; nothing committed is lost")
	}
	_ = s.process.Kill()
	<-s.done
	return errors.New("PostgreSQL ignored every request to shut down and was killed; nothing committed is lost")
}

// ended sends sig and reports whether the server ended within the limit.
func (s *Server) ended(ctx context.Context, sig os.Signal, limit time.Duration) bool {
	_ = s.process.Signal(sig) // an error means that it has ended
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-s.done:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// cleanUp gives the directory back. The server must have ended.
func (s *Server) cleanUp() {
	s.cleaned.Do(func() {
		s.removeSocketDir()
		s.lock.Release()
	})
}

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
			return fmt.Errorf("PostgreSQL could not start in %s (%s)%s", s.dir, ExitText(s.exit), logTail(s.dir))
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
	if err := errors.Join(durable.WriteFile(pwfile, []byte(s.password+"\n")), s.account.own(pwfile)); err != nil {
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
		return fmt.Errorf("initdb could not initialise the database in %s (%s)%s", s.dir, ExitText(err), quote(out))
	}
	if err := durable.Rename(fresh, s.data()); err != nil {
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

// password returns the superuser's password of a data directory, making one
// first if create is set. It is on disk before initdb learns it, so that no
// crash can leave a database that nobody can enter.
func password(dir string, create bool) (string, error) {
	path := filepath.Join(dir, "password")
	text, err := os.ReadFile(path)
	if secret := strings.TrimSpace(string(text)); err == nil && secret != "" {
		return secret, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("reading the database password: %w", err)
	}
	if !create {
		return "", fmt.Errorf("%s is missing or empty, but the database in %s was made with it: put the file back, or move the directory away to start over", path, dir)
	}
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails
	secret := base64.RawURLEncoding.EncodeToString(random)
	if err := durable.WriteFile(path, []byte(secret+"\n")); err != nil {
		return "", fmt.Errorf("keeping the database password: %w", err)
	}
	return secret, nil
}

const (
	// maxSocketPath is what sockaddr_un holds on every system we run on, less
	// its NUL: 108 bytes on Linux (unix(7)), 104 on macOS.
	maxSocketPath = 103
	socketName    = ".s.PGSQL." + port
	// shortPrefix marks the directories that stand in for a run/ whose path
	// would be too long.
	shortPrefix = "tendril-pg-"
)

// usable reports whether a socket in dir can be reached: its path has to fit,
// and clients take a comma in it for the end of a first host.
func usable(dir string) bool {
	return len(filepath.Join(dir, socketName)) <= maxSocketPath && !strings.Contains(dir, ",")
}

// makeSocketDir makes the directory of the socket, which only the server's
// account (and root) may enter. It is DataDir/run, or, where that is not
// usable, a directory elsewhere that DataDir/run points to, so that one left
// behind by a killed parent is found and removed.
func (s *Server) makeSocketDir() (string, error) {
	s.removeSocketDir()
	run := filepath.Join(s.dir, "run")
	if usable(run) {
		if err := os.Mkdir(run, 0o700); err != nil {
			return "", fmt.Errorf("making the socket directory: %w", err)
		}
		return run, s.account.own(run)
	}
	var problems []error
	for _, parent := range []string{os.TempDir(), "/tmp", "/run"} {
		if !usable(filepath.Join(parent, shortPrefix+"0123456789")) {
			continue
		}
		if err := s.account.canEnter(filepath.Join(parent, "x")); err != nil {
			problems = append(problems, err)
			continue
		}
		short, err := os.MkdirTemp(parent, shortPrefix)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if err := errors.Join(s.account.own(short), os.Symlink(short, run)); err != nil {
			_ = os.Remove(short)
			return "", fmt.Errorf("making the socket directory: %w", err)
		}
		return short, nil
	}
	return "", fmt.Errorf("the path of the data directory %s is not fit for a socket (%d bytes at most with /run/%s, no comma) and there is no other place: %w", s.dir, maxSocketPath, socketName, errors.Join(problems...))
}

// removeSocketDir removes DataDir/run and what it may point to. It deletes the
// server's own files only, and by name: the account owns the directory and
// could have put anything there.
func (s *Server) removeSocketDir() {
	run := filepath.Join(s.dir, "run")
	info, err := os.Lstat(run)
	if err != nil {
		return
	}
	target := run
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = os.Readlink(run); err != nil {
			return
		}
		if !strings.HasPrefix(filepath.Base(target), shortPrefix) {
			return
		}
	}
	if dir, err := os.OpenRoot(target); err == nil {
		_ = dir.Remove(socketName)
		_ = dir.Remove(socketName + ".lock")
		_ = dir.Close()
		_ = os.Remove(target)
	}
	_ = os.Remove(run)
}
