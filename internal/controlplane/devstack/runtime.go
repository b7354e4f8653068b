package devstack

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Runtime is how other programs reach a running Stack. It holds secrets.
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

// NotRunningError says that no Stack runs on a data directory.
type NotRunningError struct {
	Dir string
	Err error // why the file that would say how to reach it cannot be read
}

func (e *NotRunningError) Error() string {
	return fmt.Sprintf("trellis up is not running (looked in %s); start it with `trellis up`, or log in to a server: trellis login URL", e.Dir)
}

func (e *NotRunningError) Unwrap() error { return e.Err }

const runtimeFile = "runtime.json"

// ReadRuntime returns how to reach the Stack that runs on a data directory. A
// Stack that was killed leaves its file behind; whoever uses it finds that
// nothing answers. The error is a *NotRunningError when there is no file.
func ReadRuntime(dataDir string) (Runtime, error) {
	dir, err := filepath.Abs(dataDir)
	if err != nil {
		return Runtime{}, fmt.Errorf("find the data directory %s: %w", dataDir, err)
	}
	data, err := os.ReadFile(filepath.Join(dir, runtimeFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Runtime{}, &NotRunningError{Dir: dir, Err: err}
	}
	if err != nil {
		return Runtime{}, fmt.Errorf("read how to reach trellis up (is it another user's?): %w", err)
	}
	var r Runtime
	if err := json.Unmarshal(data, &r); err != nil {
		return Runtime{}, fmt.Errorf("read how to reach trellis up: %s: %w", filepath.Join(dir, runtimeFile), err)
	}
	return r, nil
}

func (r Runtime) write(dataDir string) error {
	data, err := json.MarshalIndent(r, "", "  ") //nolint:gosec // into a 0600 file, which is its place
	if err != nil {
		return fmt.Errorf("write how to reach this instance: %w", err)
	}
	if err := writeSecret(filepath.Join(dataDir, runtimeFile), append(data, '\n')); err != nil {
		return fmt.Errorf("write how to reach this instance: %w", err)
	}
	return nil
}

func removeRuntime(dataDir string) { _ = os.Remove(filepath.Join(dataDir, runtimeFile)) }
