package executor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

// workDir is the workspace's one work directory. Everything in it is of the
// current run, but for the engine's data, which holds downloaded providers.
type workDir struct {
	source, data, temp string
	vars, ephemeral    string // files with variables
	plan               string
	state              string // the directory of local and rescued state
	template           string // where the engine runs, once it is known
}

// erroredState is how the engine names a state it could not store.
const erroredState = "errored.tfstate"

func prepareWorkDir(dirs job.Dirs) (workDir, error) {
	w := workDir{
		source: filepath.Join(dirs.Work, "source"), data: filepath.Join(dirs.Work, "data"), temp: filepath.Join(dirs.Work, "tmp"),
		vars: filepath.Join(dirs.Work, "variables.tfvars.json"), ephemeral: filepath.Join(dirs.Work, "ephemeral.tfvars.json"), plan: filepath.Join(dirs.Work, "plan"),
		state: dirs.State,
	}
	if err := w.rescueState(); err != nil {
		return w, fmt.Errorf("keep the state that an earlier run left behind: %w", err)
	}
	if kept := filepath.Join(w.state, erroredState); exists(kept) {
		return w, provision.Fail(provision.CodeStateUnsaved, fmt.Sprintf(
			"an earlier run in this workspace could not store its state, which is kept in %s on this agent: push it with \"terraform state push\", remove the file, then deploy again", kept), nil)
	}
	if err := w.cleanUp(); err != nil {
		return w, fmt.Errorf("clear the work directory: %w", err)
	}
	// Modules are fetched anew each time, for their sources may be mutable;
	// providers are pinned by version and checksum and stay.
	if err := os.RemoveAll(filepath.Join(w.data, "modules")); err != nil {
		return w, fmt.Errorf("clear the work directory: %w", err)
	}
	for _, dir := range []string{w.source, w.data, w.temp} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return w, fmt.Errorf("prepare the work directory: %w", err)
		}
	}
	return w, nil
}

// cleanUp removes what holds variables or is of no more use.
func (w *workDir) cleanUp() error {
	for _, path := range []string{w.vars, w.ephemeral, w.plan, w.temp, w.source} {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

// rescueState looks for a state that a killed run left anywhere in its checkout.
func (w *workDir) rescueState() error {
	return filepath.WalkDir(w.source, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case entry.Name() == erroredState && entry.Type().IsRegular():
			return os.Rename(path, //nolint:gosec // every process of the run that wrote here is dead
				filepath.Join(w.state, erroredState))
		}
		return nil
	})
}

// keepErroredState moves a state that the engine could not store to where the
// next run finds it, and returns where that is, or "".
func (w *workDir) keepErroredState() (string, error) {
	left := filepath.Join(w.template, erroredState)
	if !exists(left) {
		return "", nil
	}
	kept := filepath.Join(w.state, erroredState)
	return kept, os.Rename(left, kept)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
