package executor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/providers"
)

// workDir is the workspace's one work directory. Everything in it is of the
// current run, but for the engine's data, which holds what init made of the
// template, and links to what the provider cache has.
type workDir struct {
	source, data                          string
	temp, home                            string
	secrets, providers                    string
	vars, sealed, ephemeral, places, plan string // in secrets
	engineConfig                          string // there, too, though it is none
	kept                                  keptStates
	// applying is whether an apply has begun of which it is not known yet what
	// it left: a state in the checkout has the checkout survive the run then.
	applying bool
}

// newWorkDir finds the workspace's work directory and rescues a state that an
// earlier run left in it. Nothing else is touched.
func newWorkDir(dirs job.Dirs) (workDir, error) {
	w := workDir{
		source: filepath.Join(dirs.Work, job.SourceName), data: filepath.Join(dirs.Work, "data"), temp: filepath.Join(dirs.Work, job.TempName), home: filepath.Join(dirs.Work, job.HomeName),
		providers: filepath.Join(dirs.Work, "providers"),
		secrets:   dirs.Secrets, vars: filepath.Join(dirs.Secrets, "variables.tfvars.json"), sealed: filepath.Join(dirs.Secrets, "sealed.tfvars.json"),
		ephemeral: filepath.Join(dirs.Secrets, "ephemeral.tfvars.json"), places: filepath.Join(dirs.Secrets, "places.tfvars.json"), plan: filepath.Join(dirs.Secrets, "plan"),
		engineConfig: filepath.Join(dirs.Secrets, "engine.tfrc"),
		kept:         keptStates{dirs.State},
	}
	if err := w.rescueState(); err != nil {
		return w, fmt.Errorf("keep the state that an earlier run left behind: %w", err)
	}
	return w, nil
}

// prepare clears the work directory for a run.
func (w *workDir) prepare() error {
	reservedIn(w.kept.dir).release() // of a run that was killed
	w.kept.settled()
	if err := errors.Join(w.cleanUp(), w.clearOdd()); err != nil {
		return fmt.Errorf("clear the work directory: %w", err)
	}
	for _, dir := range []string{w.source, w.data, w.temp, w.home, w.secrets} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("prepare the work directory: %w", err)
		}
	}
	// Files of our own that hold what is secret, such as a backend's
	// configuration, are made where the agent removes them even after a crash.
	return os.Setenv("TMPDIR", w.secrets)
}

// clearOdd removes what a template has put in the place of what runs keep: a pipe
// would be waited for.
func (w *workDir) clearOdd() error {
	var errs []error
	for path, kind := range map[string]fs.FileMode{w.data: fs.ModeDir, w.providers: fs.ModeDir, providers.Selected(w.providers): 0} {
		if info, err := os.Lstat(path); err == nil && info.Mode().Type() != kind {
			errs = append(errs, isolation.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
}

// What the engine keeps in its data directory beside providers.
const (
	modulesName       = "modules"
	backendRecord     = "terraform.tfstate" // of the backend; no state
	selectedWorkspace = "environment"
)

// modules is where the engine has the template's modules.
func (w *workDir) modules() string { return filepath.Join(w.data, modulesName) }

// cleanUp removes what holds variables or is of no more use.
func (w *workDir) cleanUp() error {
	var errs []error
	for _, path := range []string{w.secrets, w.temp, w.home, w.source} {
		if path == w.source && w.applying {
			if found, err := w.holdsState(); found || err != nil {
				errs = append(errs, err)
				continue
			}
		}
		errs = append(errs, isolation.RemoveAll(path))
	}
	return errors.Join(errs...)
}

// holdsState reports whether a state, or a part of one, is in the checkout.
func (w *workDir) holdsState() (found bool, err error) {
	err = w.eachErroredState(func(_ string, size int64) error {
		found = found || size > 0
		return nil
	})
	return found, err
}

// forgetShippedState removes files of the checkout that would be taken for a
// state that the engine could not store.
func (w *workDir) forgetShippedState() error {
	return w.eachErroredState(func(path string, _ int64) error { return os.Remove(path) })
}

// rescueState looks for a state that a killed run left anywhere in its checkout.
// One that is cut short is kept as well: it may be the only record there is.
func (w *workDir) rescueState() error {
	return w.eachErroredState(func(path string, size int64) error {
		if size == 0 {
			return nil
		}
		return w.kept.take(path)
	})
}

func (w *workDir) eachErroredState(do func(path string, size int64) error) error {
	return isolation.Walk(w.source, func(e isolation.Entry) (bool, error) {
		switch {
		case errors.Is(e.Err, fs.ErrPermission):
			return false, nil
		case e.Err != nil || !e.IsRegular() || filepath.Base(e.Path) != erroredState:
			return true, e.Err
		}
		return true, do(filepath.Join(w.source, e.Path), e.Stat.Size)
	})
}
