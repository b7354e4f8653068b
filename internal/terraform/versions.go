package terraform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/terraform-exec/tfexec"

	"github.com/tendril-run/tendril/internal/timelimit"
)

// versionCache remembers the versions of binaries between runs, in a file of
// the directory that engines are installed in: asking one costs about 50 ms.
// The file is a convenience. One that is torn, or cannot be written, only costs
// the question; of two writers at once the later wins.
type versionCache struct {
	path string // "" without a directory
}

func newVersionCache(dir string) *versionCache {
	if dir == "" {
		return &versionCache{}
	}
	return &versionCache{path: filepath.Join(dir, "versions.json")}
}

// knownVersion is what a binary answered when it had that size and time.
type knownVersion struct {
	Size    int64     `json:"size"`
	ModTime time.Time `json:"mtime"`
	Version string    `json:"version"`
}

// maxKnownVersions bounds the file, should paths come and go.
const maxKnownVersions = 100

// of returns a binary's version. The error completes a sentence that begins
// with the path.
func (c *versionCache) of(ctx context.Context, binary string) (string, error) {
	info, err := os.Stat(binary) //nolint:gosec // PATH is the agent's own
	if err != nil {
		return "", err
	}
	known := c.load()
	if k, ok := known[binary]; ok && k.Size == info.Size() && k.ModTime.Equal(info.ModTime()) && k.Version != "" {
		return k.Version, nil
	}
	version, err := askVersion(ctx, binary)
	if err != nil {
		return "", err
	}
	known[binary] = knownVersion{Size: info.Size(), ModTime: info.ModTime(), Version: version}
	c.save(known)
	return version, nil
}

func (c *versionCache) load() map[string]knownVersion {
	known := make(map[string]knownVersion)
	if c.path == "" {
		return known
	}
	content, err := os.ReadFile(c.path)
	if err != nil || json.Unmarshal(content, &known) != nil || known == nil {
		return make(map[string]knownVersion)
	}
	return known
}

// save replaces the file. Failing is not worth an error, see versionCache.
func (c *versionCache) save(known map[string]knownVersion) {
	if c.path == "" {
		return
	}
	maps.DeleteFunc(known, func(path string, _ knownVersion) bool {
		_, err := os.Stat(path)
		return err != nil
	})
	for _, path := range slices.Sorted(maps.Keys(known)) {
		if len(known) <= maxKnownVersions {
			break
		}
		delete(known, path)
	}
	content, err := json.Marshal(known)
	if err != nil {
		return
	}
	dir := filepath.Dir(c.path)
	if os.MkdirAll(dir, 0o755) != nil { //nolint:gosec // other users of this machine run the engines in it
		return
	}
	file, err := os.CreateTemp(dir, ".versions-*")
	if err != nil {
		return
	}
	_, err = file.Write(content)
	if errors.Join(err, file.Chmod(0o644), file.Close()) != nil || os.Rename(file.Name(), c.path) != nil {
		_ = os.Remove(file.Name())
	}
}

// askTimeout is how long a binary may take to say its version.
const askTimeout = 30 * time.Second

// busyPause is how long is waited at first for a file that is still open for
// writing elsewhere.
const busyPause = 5 * time.Millisecond

// askVersion runs `BINARY version`, with nothing in its environment and in a
// directory without a template.
func askVersion(ctx context.Context, binary string) (string, error) {
	ctx, cancel := timelimit.Context(ctx, askTimeout)
	defer cancel()
	dir, err := os.MkdirTemp("", "tendril-version-*")
	if err != nil {
		return "", fmt.Errorf("cannot be asked for its version: %w", err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // an empty directory in the temporary one
	runner, err := newRunner(Engine{Kind: filepath.Base(binary), Path: binary}, Options{
		Dir: dir, Env: []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH")}, KillAfter: time.Second,
	})
	if err != nil {
		return "", err
	}
	var said string
	ask := func() error {
		return runner.command("version", "").do(ctx, nil, func(ctx context.Context, tf *tfexec.Terraform) error {
			v, _, err := tf.Version(ctx, true)
			if err == nil {
				said = v.String()
			}
			return err
		})
	}
	err = ask()
	// A process that we started while the file was written has it open for
	// writing until its own execve (golang.org/issue/22315).
	for pause := busyPause; errors.Is(err, syscall.ETXTBSY) && pause < time.Second; pause *= 2 {
		select {
		case <-time.After(pause):
			err = ask()
		case <-ctx.Done():
			return "", fmt.Errorf("does not say its version: %w", timelimit.Why(ctx, err))
		}
	}
	if err != nil && timelimit.Reached(ctx) {
		return "", fmt.Errorf("%w to say its version", context.Cause(ctx))
	}
	if err != nil {
		return "", fmt.Errorf("does not say its version: %s", truncate(strings.TrimSpace(err.Error()), 512))
	}
	if said == "" {
		return "", errors.New("does not say its version")
	}
	return said, nil
}
