package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/dirlock"
	"github.com/tendril-run/tendril/internal/logstream"
	"github.com/tendril-run/tendril/internal/provision"
)

// spool is the files of one claim. They are made by the agent and handed
// down open, so that nobody needs their paths.
type spool struct {
	dir   *dataDir
	claim uuid.UUID
	about spoolAbout
	// watch is of one that an earlier boot has left.
	watch *watch
	// statesLeft says that a state in one of the slots is nowhere else. It is who
	// delivers the spool that knows.
	statesLeft bool
}

// spoolAbout is CLAIM.json: whose lines these are, for an agent that starts
// later and for a person who finds the file. It holds no part of the snapshot.
type spoolAbout struct {
	Provision uuid.UUID `json:"provision_id"`
	Number    int64     `json:"number"`
	Workspace uuid.UUID `json:"workspace_id"`
	Name      string    `json:"workspace_name"`
	// Operation is "" where an earlier version of the agent made the spool.
	Operation provision.Operation `json:"operation,omitempty"`
	// UID is what the run runs as, where runs have uids of their own.
	UID int `json:"uid,omitempty"`
}

// The suffixes of a spool's files.
const (
	aboutSuffix = ".json"
	lockSuffix  = ".lock"
	linesSuffix = ".ndjson"
	planSuffix  = ".plan"
)

// tailSuffixes are those of the two files that keep the end of a long log.
var tailSuffixes = [...]string{".tail0.ndjson", ".tail1.ndjson"}

// stateSuffixes are those of the two files for what a run writes of a managed
// state, sealed, in turn.
var stateSuffixes = [...]string{".state0", ".state1"}

// spoolFiles are a spool's files as a child inherits them.
type spoolFiles struct {
	lines, lock *os.File
	plan        *os.File // a plan bundle
	stateIn     *os.File // the managed state as it is, or empty
	stateOut    [2]*os.File
	tail        logstream.Tail
}

func (f spoolFiles) close() {
	closeAll(f.lines, f.lock, f.plan, f.tail[0], f.tail[1], f.stateIn, f.stateOut[0], f.stateOut[1])
}

// newSpool makes the files of a claim, locked. It leaves alone what is there
// under that claim already: it may be a living run's.
func (d *dataDir) newSpool(a provision.Assignment, uid int) (*spool, spoolFiles, error) {
	s := &spool{dir: d, claim: a.ClaimID, about: spoolAbout{
		Provision: a.ProvisionID, Number: a.Number, Workspace: a.WorkspaceID, Name: a.Workspace, Operation: a.Operation, UID: uid,
	}}
	files, err := s.make()
	if err != nil {
		return nil, spoolFiles{}, fmt.Errorf("make the spool: %w", err)
	}
	return s, files, nil
}

// make makes the lock first: who has made it owns the claim's other files.
func (s *spool) make() (files spoolFiles, err error) {
	const fresh = os.O_CREATE | os.O_EXCL
	if files.lock, err = os.OpenFile(s.path(lockSuffix), os.O_RDWR|fresh, 0o600); err != nil {
		return files, err
	}
	made := []string{lockSuffix}
	defer func() {
		if err == nil {
			return
		}
		files.close()
		for _, suffix := range made {
			err = errors.Join(err, os.Remove(s.path(suffix)))
		}
	}()
	if free, err := dirlock.TryFile(files.lock); err != nil || !free {
		return files, errors.Join(err, fmt.Errorf("%s is locked already", s.path(lockSuffix)))
	}
	if files.lines, err = os.OpenFile(s.path(linesSuffix), os.O_WRONLY|os.O_APPEND|fresh, 0o600); err != nil {
		return files, err
	}
	made = append(made, linesSuffix)
	for i, suffix := range tailSuffixes {
		if files.tail[i], err = os.OpenFile(s.path(suffix), os.O_RDWR|os.O_APPEND|fresh, 0o600); err != nil {
			return files, err
		}
		made = append(made, suffix)
	}
	if files.plan, err = os.OpenFile(s.path(planSuffix), os.O_RDWR|fresh, 0o600); err != nil {
		return files, err
	}
	made = append(made, planSuffix)
	for i, suffix := range stateSuffixes {
		if files.stateOut[i], err = os.OpenFile(s.path(suffix), os.O_RDWR|fresh, 0o600); err != nil {
			return files, err
		}
		made = append(made, suffix)
	}
	if err := files.tail.Reserve(); err != nil {
		return files, fmt.Errorf("set room aside for the end of the run: %w", err)
	}
	about, err := json.Marshal(s.about)
	if err != nil {
		return files, err
	}
	return files, writeFile(s.path(aboutSuffix), append(about, '\n'))
}

// spools lists what earlier boots left.
func (d *dataDir) spools() ([]*spool, error) {
	entries, err := os.ReadDir(d.path("spool"))
	if err != nil {
		return nil, fmt.Errorf("look for spools: %w", err)
	}
	var found []*spool
	for _, entry := range entries {
		name, _, _ := strings.Cut(entry.Name(), ".")
		claim, err := uuid.Parse(name)
		if err != nil || slices.ContainsFunc(found, func(s *spool) bool { return s.claim == claim }) {
			continue
		}
		s := &spool{dir: d, claim: claim}
		// A crash may have come before it was written. The lines are delivered
		// by their claim; the rest is for the log.
		if about, err := readFile(s.path(aboutSuffix)); err == nil {
			_ = json.Unmarshal(about, &s.about)
		}
		found = append(found, s)
	}
	return found, nil
}

func (s *spool) path(suffix string) string { return s.dir.path("spool", s.claim.String()+suffix) }

// open opens the lines, for reading, or to append to them as well.
func (s *spool) open(flag int) (*os.File, error) {
	return openRegular(s.path(linesSuffix), flag)
}

// openTail opens the files of the tail, for reading, or to append to them as
// well. An agent that ended while it made them may have left none.
func (s *spool) openTail(flag int) (tail logstream.Tail, err error) {
	for i, suffix := range tailSuffixes {
		if tail[i], err = openRegular(s.path(suffix), flag); err != nil && !errors.Is(err, fs.ErrNotExist) {
			closeAll(tail[:]...)
			return logstream.Tail{}, err
		}
	}
	return tail, nil
}

// suffixes are those of all its files, in the order in which they go: what they
// belong to goes last.
func suffixes() []string {
	return []string{linesSuffix, tailSuffixes[0], tailSuffixes[1], planSuffix, stateSuffixes[0], stateSuffixes[1], lockSuffix, aboutSuffix}
}

// free reports whether no child holds the lock.
func (s *spool) free() (bool, error) {
	lock, err := openRegular(s.path(lockSuffix), os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // no child was ever started
	}
	if err != nil {
		return false, err
	}
	defer lock.Close() //nolint:errcheck // nothing was written
	return dirlock.TryFile(lock)
}

// remove removes the files, but for a state that is nowhere else: that goes to
// what people look at.
func (s *spool) remove() error {
	var errs []error
	for _, suffix := range suffixes() {
		if s.statesLeft && slices.Contains(stateSuffixes[:], suffix) && s.kept(suffix) {
			continue
		}
		if err := os.Remove(s.path(suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// kept moves a slot out of the way, where it holds something.
func (s *spool) kept(suffix string) bool {
	info, err := os.Lstat(s.path(suffix))
	return err == nil && info.Size() > 0 && os.Rename(s.path(suffix), s.dir.path("rejected", s.claim.String()+suffix)) == nil
}

// reject moves the files out of the way and returns where the lines are now. A
// plan, which holds secrets, a lock or an unused tail is of no use there, but may
// be something that only moving gets away.
func (s *spool) reject() (string, error) {
	tail, err := s.openTail(os.O_RDONLY)
	unused := err == nil && !tail.Used()
	closeAll(tail[:]...)
	to := func(suffix string) string { return s.dir.path("rejected", s.claim.String()+suffix) }
	var errs []error
	for _, suffix := range suffixes() {
		useless := suffix == planSuffix || suffix == lockSuffix || unused && slices.Contains(tailSuffixes[:], suffix)
		if slices.Contains(stateSuffixes[:], suffix) { // one that holds a state is kept
			info, err := os.Lstat(s.path(suffix))
			useless = err == nil && info.Size() == 0
		}
		if useless && os.Remove(s.path(suffix)) == nil {
			continue
		}
		if err := os.Rename(s.path(suffix), to(suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return to(linesSuffix), errors.Join(errs...)
}
