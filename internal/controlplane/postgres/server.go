package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tendril-run/tendril/internal/dirlock"
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
		return fmt.Errorf("PostgreSQL in %s ended unexpectedly (%s)%s", s.dir, exitText(s.exit), logTail(s.dir))
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
