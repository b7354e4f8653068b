package agent

import (
	"bytes"
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
	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/job"
)

// dataDir is the directory that belongs to one agent instance. Everything in it
// is 0700 or 0600, unless runs have uids of their own, see uids.
//
//	lock          see dirlock: who has the directory
//	instance      the instance id
//	place         where the agent said that it is, and by which lock
//	identity      the private keys to which variables are sealed, see package identity
//	agent.key     the key with which the agent signs its requests, if it has joined by one
//	cluster       the name of the cluster that the agent first registered in
//	spool/        CLAIM.json, CLAIM.lock, CLAIM.ndjson, CLAIM.tail[01].ndjson, CLAIM.plan for each claim in flight
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

// dirPause is how often a data directory that is in use is tried again: a restarted pod
// registers within a second of the end of the one before.
const dirPause = 200 * time.Millisecond

// sharedDirs are the directories that all children share.
func (d *dataDir) sharedDirs() job.Dirs {
	return job.Dirs{Repos: d.path("repos"), Engines: d.path("engines"), Providers: d.path("providers")}
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
	if err := durable.WriteFile(path, []byte(id.String()+"\n")); err != nil {
		return uuid.Nil, fmt.Errorf("write the instance id: %w", err)
	}
	return id, nil
}

// removeHalves removes files of which an agent that was killed had written a
// part.
func (d *dataDir) removeHalves() error {
	for _, dir := range []string{d.root, d.path("spool"), d.path("engines")} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("look through the data directory: %w", err)
		}
		for _, entry := range entries {
			if !strings.HasPrefix(entry.Name(), durable.TempPrefix) || !entry.Type().IsRegular() {
				continue // none of ours
			}
			if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil {
				return fmt.Errorf("remove a file that was not finished: %w", err)
			}
		}
	}
	return nil
}
