package instance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
)

// LocalUser is who asks on a machine where nobody signs in: the same in every
// data directory, so that a database outlives them.
var LocalUser = uuid.MustParse("10ca1000-0000-4000-8000-000000000001")

// RuntimeFile is the file in the data directory that holds a Runtime, 0600.
const RuntimeFile = "runtime.json"

// maxRuntime bounds that file, in bytes.
const maxRuntime = 64 << 10

// Runtime is how other programs reach a running instance. It holds secrets.
type Runtime struct {
	PID         int       `json:"pid"`
	URL         string    `json:"url"`          // of the HTTP server, on this machine's loopback
	BrowserURL  string    `json:"browser_url"`  // the same for browsers: by a host name that no other instance has
	DatabaseURL string    `json:"database_url"` // as the database's owner
	QueueURL    string    `json:"queue_url"`    // as an agent
	Token       string    `json:"token"`        // of the local cluster
	APIToken    string    `json:"api_token"`    // of the local user, for the CLI; revoked at the end
	Version     string    `json:"version"`
	StartedAt   time.Time `json:"started_at"`
}

// NotRunningError says that nothing runs on a data directory.
type NotRunningError struct {
	Dir string
	Err error // why the file that would say how to reach it cannot be read
}

func (e *NotRunningError) Error() string { return notRunning(runtime.GOOS, e.Dir) }

func (e *NotRunningError) Unwrap() error { return e.Err }

// notRunning tells of it on a system where it may not be possible to start it.
func notRunning(system, dir string) string {
	if system != "linux" {
		return "you are not logged in to a server: trellis login URL (nothing runs here that could be asked instead: trellis up needs Linux)"
	}
	earlier := ""
	if found := Earlier(); found != "" && dir == DefaultDataDir() {
		earlier = fmt.Sprintf("; the data that an earlier version kept in %s is not used until you run: trellis up --move-from %s", found, EarlierDataDir)
	}
	return fmt.Sprintf("trellis up is not running (looked in %s); start it with `trellis up`, or log in to a server: trellis login URL%s", dir, earlier)
}

// ReadRuntime returns how to reach the instance that runs on a data directory. It
// believes a directory of this user's trellis up only, and addresses of this
// machine only. One that was killed leaves its file behind; whoever uses it finds
// that nothing answers. The error is a *NotRunningError when there is no file.
func ReadRuntime(dataDir string) (Runtime, error) {
	if dataDir == "" {
		return Runtime{}, errNoHome
	}
	dir, err := filepath.Abs(dataDir)
	if err != nil {
		return Runtime{}, fmt.Errorf("find the data directory %s: %w", dataDir, err)
	}
	path := filepath.Join(dir, RuntimeFile)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return Runtime{}, &NotRunningError{Dir: dir, Err: err}
	} else if errors.Is(err, fs.ErrPermission) {
		return Runtime{}, notYours(dir, err)
	}
	if err := CheckDataDir(dir); err != nil {
		return Runtime{}, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return Runtime{}, &NotRunningError{Dir: dir, Err: err}
	}
	if err != nil {
		return Runtime{}, fmt.Errorf("read how to reach trellis up: %w", err)
	}
	defer func() { _ = file.Close() }()
	if err := private(file); err != nil {
		return Runtime{}, fmt.Errorf("read how to reach trellis up: %w", err)
	}
	var r Runtime
	if err := json.NewDecoder(io.LimitReader(file, maxRuntime)).Decode(&r); err != nil {
		return Runtime{}, fmt.Errorf("read how to reach trellis up: %s: %w", path, err)
	}
	if !onLoopback(r.URL) || r.BrowserURL != "" && !onLoopback(r.BrowserURL) {
		return Runtime{}, fmt.Errorf("read how to reach trellis up: %s names a server that is not on this machine's loopback", path)
	}
	return r, nil
}

// onLoopback reports whether a URL leads to this machine's loopback. Browsers
// resolve names below localhost themselves.
func onLoopback(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" {
		return false
	}
	address, err := netip.ParseAddr(u.Hostname())
	return err == nil && address.IsLoopback() || strings.HasSuffix(u.Hostname(), ".localhost")
}
