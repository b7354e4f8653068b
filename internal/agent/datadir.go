package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/dirlock"
	"github.com/tendril-run/tendril/internal/job"
)

// dataDir is the directory that belongs to one agent instance. Everything in it
// is 0700 or 0600, unless runs have uids of their own, see ownership.go.
//
//	lock          see dirlock: who has the directory
//	instance      the instance id
//	place         where the agent said that it is, and by which lock
//	identity      the private key to which variables are sealed
//	cluster       the name of the cluster that the agent first registered in
//	spool/        CLAIM.json, CLAIM.lock, CLAIM.ndjson, CLAIM.tail[01].ndjson, CLAIM.plan for each claim in hand
//	rejected/     spools that the database would not take
//	work/ID/      the work directory of a workspace; secrets/ in it is a run's
//	state/ID/     its local state, if it has one
//	repos/        git mirrors
//	engines/      installed engines
//	providers/    provider packages
//	checkouts/ID/ a template on its way from the caches' uid to the run's
//
// What of it can be fetched again is kept within limits, see tidier.
type dataDir struct {
	root     string
	instance uuid.UUID
	lock     *dirlock.Lock
	uids     *uids // nil where runs have the agent's uid
}

// openDataDir makes and locks the directory for the agent of that name, and reads or
// makes the instance id. It fails with a *dirlock.InUseError while somebody else has
// the directory.
func openDataDir(path, name string) (_ *dataDir, err error) {
	defer func() { err = adviseOnDir(path, err) }()
	root, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", path, err)
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("make the data directory: %w", err)
	}
	// One spelling for the same directory, by which what runs in it is known.
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return nil, fmt.Errorf("find the data directory: %w", err)
	}
	d := &dataDir{root: root}
	if d.lock, err = dirlock.Take(root, dirlock.Self(name)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	for _, name := range []string{"spool", "rejected", "work", "state", "states", "repos", "engines", "providers", "checkouts"} {
		if err := os.MkdirAll(d.path(name), 0o700); err != nil {
			return nil, fmt.Errorf("make the data directory: %w", err)
		}
	}
	if err := d.removeHalves(); err != nil {
		return nil, err
	}
	if d.instance, err = instanceID(d.path("instance")); err != nil {
		return nil, err
	}
	return d, nil
}

// adviseOnDir says what to do about a directory that the system does not let be
// written: a volume is missing, or somebody else's.
func adviseOnDir(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w. The agent runs as user %d, group %d: give %s to them, or mount a volume there that is theirs", err, os.Geteuid(), os.Getegid(), path)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w. Mount a volume at %s that the agent can write, and keep it: what it holds is needed after a restart", err, path)
	case diskFull(err):
		return fmt.Errorf("%w. Make room on the disk of %s, or give it a larger volume", err, path)
	}
	return err
}

// diskFull reports whether an error says that the disk, or the user's part of it, is full.
func diskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

func (d *dataDir) path(names ...string) string {
	return filepath.Join(append([]string{d.root}, names...)...)
}

// close gives the directory up.
func (d *dataDir) close() { d.lock.Release() }

// openWhenFree opens the data directory. A process beside this one that has it, in the
// same container or on the same machine, does not go away by itself: that is an error.
// Any other, such as the pod before this one that still drains on the same volume, is
// waited for until ctx ends: an agent that ended instead would only be started again.
func (a *Agent) openWhenFree(ctx context.Context) (*dataDir, error) {
	loop := a.options.Loops.Begin("data directory")
	defer loop.End()
	for told := false; ; told = true {
		dir, err := openDataDir(a.options.DataDir, a.options.Name)
		taken, inUse := errors.AsType[*dirlock.InUseError](err)
		if !inUse {
			if told && err == nil {
				a.options.Log.Info("the data directory is free", "dir", a.options.DataDir)
			}
			return dir, err
		}
		if taken.Holder.Beside(dirlock.Self(a.options.Name)) {
			return nil, fmt.Errorf("the data directory %s is in use by %s: stop that agent, or give this one a data directory and a name of its own (--data-dir, --name)",
				taken.Dir, taken.Holder)
		}
		if !told {
			a.options.Log.Warn("another agent has the data directory: waiting until it ends", "dir", taken.Dir, "agent", taken.Holder.String())
			a.options.Standing.Missed("its data directory is in use by " + taken.Holder.String())
		}
		loop.Turns(dirPause)
		if !wait(ctx, dirPause) {
			return nil, ctx.Err()
		}
	}
}

// dirPause is how often a data directory that is in use is tried again: a restarted pod
// registers within a second of the end of the one before.
const dirPause = 200 * time.Millisecond

// secretsName is the directory for secrets in a work directory.
const secretsName = "secrets"

// workspace makes the directories of a workspace; that for secrets is empty.
func (d *dataDir) workspace(id uuid.UUID) (job.Dirs, error) {
	work := d.path("work", id.String())
	dirs := job.Dirs{
		Work: work, State: d.path("state", id.String()),
		Repos: d.path("repos"), Engines: d.path("engines"), Providers: d.path("providers"), Secrets: filepath.Join(work, secretsName),
	}
	if err := d.removeSecrets(id.String()); err != nil {
		return job.Dirs{}, err
	}
	made := []string{dirs.Work, dirs.State, dirs.Secrets}
	if d.uids != nil {
		made = made[:2] // the run makes what is its own
		dirs.Checkout = d.path("checkouts", id.String())
	}
	for _, dir := range made {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return job.Dirs{}, fmt.Errorf("make the workspace's directory: %w", err)
		}
	}
	return dirs, nil
}

// instanceID reads the id in the file, or makes one. A file that holds no id is
// an error: a new id would abandon what the old one has in the database.
func instanceID(path string) (uuid.UUID, error) {
	content, err := readFile(path)
	switch {
	case err == nil:
		id, err := uuid.ParseBytes(bytes.TrimSpace(content))
		if err != nil {
			return uuid.Nil, fmt.Errorf("%s holds no instance id: restore it from a backup, or remove it to make this agent a new instance", path)
		}
		return id, nil
	case !errors.Is(err, fs.ErrNotExist):
		return uuid.Nil, fmt.Errorf("read the instance id: %w", err)
	}
	id := uuid.New()
	if err := writeFile(path, []byte(id.String()+"\n")); err != nil {
		return uuid.Nil, fmt.Errorf("write the instance id: %w", err)
	}
	return id, nil
}

// tempPrefix begins the names of files that are being written.
const tempPrefix = ".tmp-"

// removeHalves removes files of which an agent that was killed had written a
// part.
func (d *dataDir) removeHalves() error {
	for _, dir := range []string{d.root, d.path("spool")} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("look through the data directory: %w", err)
		}
		for _, entry := range entries {
			if !strings.HasPrefix(entry.Name(), tempPrefix) || !entry.Type().IsRegular() {
				continue // none of ours
			}
			if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil {
				return fmt.Errorf("remove a file that was not finished: %w", err)
			}
		}
	}
	return nil
}

// writeFile writes a file that is there either whole or not at all, also after
// the machine has crashed.
func writeFile(path string, content []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), tempPrefix+"*")
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name()) // the first error is the one to tell
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
