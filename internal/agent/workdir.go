package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/job"
)

// removeSecrets removes what a run of the workspace left that is secret. None
// of its processes may live.
func (d *dataDir) removeSecrets(workspace string) error {
	if err := isolation.RemoveAll(d.path("work", workspace, secretsName)); err != nil {
		return fmt.Errorf("remove the secrets of a run: %w", err)
	}
	return nil
}

// clear removes all that is left of a run of the workspace, as the run does
// itself where it is not killed: what is secret, the room it reserved, and what is
// of one run only, unless a state is in it that could not be stored. None of its
// processes may live.
func (d *dataDir) clear(workspace string) error {
	errs := []error{d.removeSecrets(workspace)}
	if err := os.Remove(d.path("state", workspace, job.BallastName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("give back the room that a run reserved: %w", err))
	}
	if err := isolation.RemoveAll(d.path("checkouts", workspace)); err != nil {
		errs = append(errs, fmt.Errorf("remove a checkout: %w", err))
	}
	for _, name := range []string{job.SourceName, job.TempName, job.HomeName} {
		dir := d.path("work", workspace, name)
		if unsaved, err := holdsState(dir); err != nil || unsaved {
			errs = append(errs, err)
			continue
		}
		if err := isolation.RemoveAll(dir); err != nil {
			errs = append(errs, fmt.Errorf("clear a work directory: %w", err))
		}
	}
	return errors.Join(errs...)
}

// workspaces lists those that have a work directory, but for what is being
// deleted.
func (d *dataDir) workspaces() (names []string, err error) {
	entries, err := os.ReadDir(d.path("work"))
	if err != nil {
		return nil, fmt.Errorf("look for what earlier runs left: %w", err)
	}
	for _, entry := range entries {
		if entry.IsDir() && !strings.HasPrefix(entry.Name(), removedPrefix) {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// errFound ends a walk that has found what it looks for.
var errFound = errors.New("found")

// holdsState reports whether a state that could not be stored is in dir or
// below. What cannot be read may hold one.
func holdsState(dir string) (bool, error) {
	return holds(dir, func(e isolation.Entry) bool {
		return path.Base(e.Path) == job.UnsavedState && e.Stat.Size > 0
	})
}

// holds reports whether a regular file of a kind is in dir or below.
func holds(dir string, kind func(isolation.Entry) bool) (bool, error) {
	err := isolation.Walk(dir, func(e isolation.Entry) (bool, error) {
		if e.Err == nil && e.IsRegular() && kind(e) {
			return false, errFound
		}
		return true, e.Err
	})
	switch {
	case err == nil:
		return false, nil
	case errors.Is(err, errFound):
		return true, nil
	default:
		return false, fmt.Errorf("look for a state that could not be stored: %w", err)
	}
}
