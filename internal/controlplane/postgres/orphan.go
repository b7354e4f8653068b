package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// orphanEvery is how often an orphan that was told to end is looked at: it is
// not our child, so its end cannot be waited for.
const orphanEvery = 20 * time.Millisecond

// stopOrphans ends what a killed parent left running on a PGDATA whose lock we
// hold: a postmaster, or the backends of a postmaster that was killed too,
// which may calculate on for ever and would keep a new one from starting.
func stopOrphans(ctx context.Context, data string) error {
	path := filepath.Join(data, "postmaster.pid")
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("looking for a PostgreSQL left behind: %w", err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, _ := strconv.Atoi(strings.TrimSpace(first))
	// The file alone proves nothing: the number may be another process's by now.
	if pid > 1 && servesData(pid, data) {
		for _, step := range []struct {
			sig   syscall.Signal
			limit time.Duration
		}{{syscall.SIGINT, fastLimit}, {syscall.SIGQUIT, quitLimit}} {
			_ = syscall.Kill(pid, step.sig)
			if gone, err := awaitGone(ctx, []int{pid}, data, step.limit); gone || err != nil {
				return err
			}
		}
	}
	if rest := processesOf(data); len(rest) > 0 {
		for _, pid := range rest {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		gone, err := awaitGone(ctx, rest, data, quitLimit)
		if err != nil {
			return err
		}
		if !gone {
			return fmt.Errorf("a PostgreSQL that an earlier run left behind in %s does not end, even by SIGKILL (processes %v)", data, rest)
		}
	}
	return removeStale(path, pid)
}

// awaitGone reports whether all the processes ended within the limit.
func awaitGone(ctx context.Context, pids []int, data string, limit time.Duration) (bool, error) {
	tick := time.NewTicker(orphanEvery)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); {
		if !slices.ContainsFunc(pids, func(pid int) bool { return servesData(pid, data) }) {
			return true, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false, fmt.Errorf("stopping the PostgreSQL that an earlier run left behind in %s (process %d): %w", data, pids[0], context.Cause(ctx))
		}
	}
	return false, nil
}

// removeStale removes a pid file that would keep a new postmaster from
// starting: one whose number was given to some other living process (in a
// container, numbers repeat at every start). One whose process is dead is left
// to PostgreSQL, which looks then whether its memory is still in use.
func removeStale(path string, pid int) error {
	if pid > 0 && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing a stale pid file: %w", err)
	}
	return nil
}
