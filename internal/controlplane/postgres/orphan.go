package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// orphanEvery is how often an orphan that was told to stop is looked at: it is
// not our child, so its end cannot be waited for.
const orphanEvery = 20 * time.Millisecond

// stopOrphan ends the postmaster that a killed parent left in a PGDATA whose
// lock we hold. A pid file alone proves nothing: its number may belong to
// another process by now.
func stopOrphan(ctx context.Context, data string) error {
	path := filepath.Join(data, "postmaster.pid")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking for a PostgreSQL left behind: %w", err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || pid <= 1 || pid == os.Getpid() || !isPostmaster(pid, data) {
		return removeStale(path, pid)
	}
	for _, step := range []struct {
		sig   syscall.Signal
		limit time.Duration
	}{{syscall.SIGINT, fastLimit}, {syscall.SIGQUIT, quitLimit}, {syscall.SIGKILL, quitLimit}} {
		_ = syscall.Kill(pid, step.sig)
		if gone, err := awaitGone(ctx, pid, data, step.limit); gone || err != nil {
			return err
		}
	}
	return fmt.Errorf("a PostgreSQL server that an earlier run left behind in %s (process %d) does not end", data, pid)
}

func awaitGone(ctx context.Context, pid int, data string, limit time.Duration) (bool, error) {
	tick := time.NewTicker(orphanEvery)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); {
		if !isPostmaster(pid, data) {
			return true, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false, fmt.Errorf("stopping the PostgreSQL server that an earlier run left behind in %s (process %d): %w", data, pid, context.Cause(ctx))
		}
	}
	return false, nil
}

// removeStale removes a pid file that would stop a new postmaster: one whose
// number was given to some other living process (in a container, numbers
// repeat at every start). One whose process is dead is left to PostgreSQL,
// which then also looks for backends that are still attached.
func removeStale(path string, pid int) error {
	if pid > 0 && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return nil
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("removing a stale pid file: %w", err)
	}
	return nil
}
