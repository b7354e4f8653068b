package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/job"
)

// workspaceDirs gives a run the directories of its workspace, and takes them back:
//
//	open ─▶ made, and given to the run's uid ─▶ the run ─▶ close ─▶ cleared, and root's
//
// Where runs have the agent's uid they belong to it all the time.
type workspaceDirs struct {
	dir  *dataDir
	uids *uids // nil where runs have the agent's uid
}

// secretsName is the directory for secrets in a work directory.
const secretsName = "secrets"

// open makes the directories of a workspace; that for secrets is empty. Where runs have
// uids of their own it chooses the run's, and gives them to it; else that is 0. Nothing
// of an earlier run may live.
func (w workspaceDirs) open(workspace uuid.UUID, log *slog.Logger) (dirs job.Dirs, uid int, err error) {
	id := workspace.String()
	dirs = w.dir.sharedDirs()
	dirs.Work, dirs.State = w.dir.path("work", id), w.dir.path("state", id)
	dirs.Secrets = filepath.Join(dirs.Work, secretsName)
	if err := w.removeSecrets(id); err != nil {
		return dirs, 0, err
	}
	made := []string{dirs.Work, dirs.State, dirs.Secrets}
	if w.uids != nil {
		made = made[:2] // the run makes what is its own
		dirs.Checkout = w.dir.path("checkouts", id)
	}
	for _, dir := range made {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return dirs, 0, fmt.Errorf("make the workspace's directory: %w", err)
		}
	}
	if w.uids == nil {
		return dirs, 0, nil
	}
	if uid, err = w.uids.ready(workspace, isolation.Group(dirs.Work), log); err != nil {
		return dirs, 0, err
	}
	return dirs, uid, errors.Join(w.uids.block.HandOver(dirs.Work, uid, 0o750), w.uids.block.HandOver(dirs.State, uid, 0o700))
}

// close removes what a run left in the workspace's directories, takes them back, and
// then the uid. It reports whether a state stays that could not be stored.
func (w workspaceDirs) close(workspace uuid.UUID, log *slog.Logger) (unsaved bool) {
	id := workspace.String()
	unsaved, err := w.unsaved(id)
	if err := errors.Join(err, w.clear(id)); err != nil {
		log.Error("files of the run, with variables, may be left in the data directory", "error", err)
	}
	w.markUsed(id)
	if err := w.shut(id); err != nil {
		w.uids.abandon(workspace)
		log.Error("the run's directories could not be shut to others; its uid is not used again before the next start", "error", err)
	} else {
		w.uids.give(workspace)
	}
	if unsaved {
		log.Warn("a state that the engine could not store is kept; the next run in the workspace stores it before anything else",
			"state", w.dir.path("state", id), "work", w.dir.path("work", id))
	}
	return unsaved
}

// remove is close for what is not a workspace's but one check's: nothing stays.
func (w workspaceDirs) remove(id uuid.UUID, log *slog.Logger) {
	var errs []error
	for _, kind := range []string{"work", "state", "checkouts"} {
		errs = append(errs, isolation.RemoveAll(w.dir.path(kind, id.String())))
	}
	if err := errors.Join(errs...); err != nil {
		w.uids.abandon(id)
		log.Error("what a health check left could not be removed; its uid is not used again before the next start", "error", err)
		return
	}
	w.uids.give(id)
}

// shut takes the directories back.
func (w workspaceDirs) shut(workspace string) error {
	if w.uids == nil {
		return nil
	}
	return errors.Join(isolation.Shut(w.dir.path("work", workspace)), isolation.Shut(w.dir.path("state", workspace)))
}

// removeSecrets removes what a run of the workspace left that is secret. None
// of its processes may live.
func (w workspaceDirs) removeSecrets(workspace string) error {
	if err := isolation.RemoveAll(w.dir.path("work", workspace, secretsName)); err != nil {
		return fmt.Errorf("remove the secrets of a run: %w", err)
	}
	return nil
}

// clear removes all that is left of a run of the workspace, as the run does
// itself where it is not killed: what is secret, the room it reserved, and what is
// of one run only, unless a state is in it that could not be stored. None of its
// processes may live.
func (w workspaceDirs) clear(workspace string) error {
	errs := []error{w.removeSecrets(workspace)}
	if err := os.Remove(w.dir.path("state", workspace, job.ReservedName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("give back the room that a run reserved: %w", err))
	}
	if err := isolation.RemoveAll(w.dir.path("checkouts", workspace)); err != nil {
		errs = append(errs, fmt.Errorf("remove a checkout: %w", err))
	}
	for _, name := range []string{job.SourceName, job.TempName, job.HomeName} {
		dir := w.dir.path("work", workspace, name)
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

// list lists the workspaces that have a work directory, but for what is being
// deleted.
func (w workspaceDirs) list() (names []string, err error) {
	entries, err := os.ReadDir(w.dir.path("work"))
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

// unsaved reports whether a state of the workspace that an engine could not
// store is on this agent: left by a run that was killed, or kept by one. What
// cannot be read may be one.
func (w workspaceDirs) unsaved(workspace string) (bool, error) {
	for _, name := range []string{job.SourceName, job.TempName, job.HomeName} {
		if found, err := holdsState(w.dir.path("work", workspace, name)); found || err != nil {
			return true, err
		}
	}
	return holds(w.dir.path("state", workspace), func(e isolation.Entry) bool {
		kept, err := path.Match(job.KeptStates, e.Path) // not below: it has no slash
		return kept && err == nil
	})
}

// markUsed says that a run has used a work directory until now. A template may
// have given it another time, and something else its name.
func (w workspaceDirs) markUsed(workspace string) {
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
	// At worst what it holds is fetched once more.
	_ = unix.UtimesNanoAt(unix.AT_FDCWD, w.dir.path("work", workspace), now, unix.AT_SYMLINK_NOFOLLOW)
}
