package instance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/google/uuid"
)

// LocalUser is who asks on a machine where nobody signs in: the same in every
// data directory, so that a database outlives them.
var LocalUser = uuid.MustParse("10ca1000-0000-4000-8000-000000000001")

// RuntimeFile is the file in the data directory that holds a Runtime, 0600.
const RuntimeFile = "runtime.json"

// DefaultDataDir is the data directory of who does not name one: the current
// directory's .tendril, and as root a place that PostgreSQL, which refuses
// root, can reach from an account of its own.
func DefaultDataDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/tendril"
	}
	return ".tendril"
}

// Runtime is how other programs reach a running instance. It holds secrets.
type Runtime struct {
	PID         int       `json:"pid"`
	URL         string    `json:"url"`          // of the HTTP server
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
	return fmt.Sprintf("trellis up is not running (looked in %s); start it with `trellis up`, or log in to a server: trellis login URL", dir)
}

// ReadRuntime returns how to reach the instance that runs on a data directory.
// One that was killed leaves its file behind; whoever uses it finds that nothing
// answers. The error is a *NotRunningError when there is no file.
func ReadRuntime(dataDir string) (Runtime, error) {
	dir, err := filepath.Abs(dataDir)
	if err != nil {
		return Runtime{}, fmt.Errorf("find the data directory %s: %w", dataDir, err)
	}
	data, err := os.ReadFile(filepath.Join(dir, RuntimeFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Runtime{}, &NotRunningError{Dir: dir, Err: err}
	}
	if err != nil {
		return Runtime{}, fmt.Errorf("read how to reach trellis up (is it another user's?): %w", err)
	}
	var r Runtime
	if err := json.Unmarshal(data, &r); err != nil {
		return Runtime{}, fmt.Errorf("read how to reach trellis up: %s: %w", filepath.Join(dir, RuntimeFile), err)
	}
	return r, nil
}
