package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/delivery"
	"github.com/tendril-run/tendril/internal/dirlock"
	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/spool"
	"github.com/tendril-run/tendril/internal/statechain"
)

// claimFiles are the files of one claim. They are made by the agent and handed
// down open, so that nobody needs their paths.
type claimFiles struct {
	dir   *dataDir
	claim uuid.UUID
	about claimAbout
	// watch is of one that an earlier boot has left.
	watch *watch
	// statesLeft says that a state in one of the slots is nowhere else. It is who
	// delivers the spool that knows.
	statesLeft bool
}

// claimAbout is CLAIM.json: whose lines these are, for an agent that starts
// later and for a person who finds the file. It holds no part of the snapshot.
type claimAbout struct {
	Provision uuid.UUID `json:"provision_id"`
	Number    int64     `json:"number"`
	Workspace uuid.UUID `json:"workspace_id"`
	Name      string    `json:"workspace_name"`
	// Operation is "" where an earlier version of the agent made the spool.
	Operation provision.Operation `json:"operation,omitempty"`
	// Plan is the digest of the plan that the run was given, which is stored already.
	Plan string `json:"plan,omitempty"`
	// Traceparent is the trace that the run belongs to.
	Traceparent string `json:"traceparent,omitempty"`
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

// childFiles are a claim's files as a child inherits them.
type childFiles struct {
	lines, lock *os.File
	plan        *os.File // a plan bundle
	stateIn     *os.File // the managed state as it is, or empty
	stateOut    [2]*os.File
	tail        spool.Tail
}

func (f childFiles) close() {
	closeAll(f.lines, f.lock, f.plan, f.tail[0], f.tail[1], f.stateIn, f.stateOut[0], f.stateOut[1])
}

// newClaimFiles makes the files of a claim, locked. It leaves alone what is there
// under that claim already: it may be a living run's.
func newClaimFiles(d *dataDir, a provision.Assignment, uid int) (*claimFiles, childFiles, error) {
	s := &claimFiles{dir: d, claim: a.ClaimID, about: claimAbout{
		Provision: a.ProvisionID, Number: a.Number, Workspace: a.WorkspaceID, Name: a.Workspace, Operation: a.Operation, Plan: a.ApprovedPlan, Traceparent: a.Traceparent, UID: uid,
	}}
	files, err := s.make()
	if err != nil {
		return nil, childFiles{}, fmt.Errorf("make the spool: %w", err)
	}
	return s, files, nil
}

// make makes the lock first: who has made it owns the claim's other files.
func (s *claimFiles) make() (files childFiles, err error) {
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
	if err := spool.Reserve(files.lines); err != nil {
		return files, fmt.Errorf("set room aside for the end of the run: %w", err)
	}
	about, err := json.Marshal(s.about)
	if err != nil {
		return files, err
	}
	return files, durable.WriteFile(s.path(aboutSuffix), append(about, '\n'))
}

// leftClaims lists what earlier boots left.
func leftClaims(d *dataDir) ([]*claimFiles, error) {
	entries, err := os.ReadDir(d.path("spool"))
	if err != nil {
		return nil, fmt.Errorf("look for spools: %w", err)
	}
	var found []*claimFiles
	for _, entry := range entries {
		name, _, _ := strings.Cut(entry.Name(), ".")
		claim, err := uuid.Parse(name)
		if err != nil || slices.ContainsFunc(found, func(s *claimFiles) bool { return s.claim == claim }) {
			continue
		}
		s := &claimFiles{dir: d, claim: claim}
		// A crash may have come before it was written. The lines are delivered
		// by their claim; the rest is for the log.
		if about, err := readFile(s.path(aboutSuffix)); err == nil {
			_ = json.Unmarshal(about, &s.about)
		}
		found = append(found, s)
	}
	return found, nil
}

func (s *claimFiles) path(suffix string) string { return s.dir.path("spool", s.claim.String()+suffix) }

// open opens the lines, for reading, or to append to them as well.
func (s *claimFiles) open(flag int) (*os.File, error) {
	return openRegular(s.path(linesSuffix), flag)
}

// openTail opens the files of the tail, for reading, or to append to them as
// well. An agent that ended while it made them may have left none.
func (s *claimFiles) openTail(flag int) (tail spool.Tail, err error) {
	for i, suffix := range tailSuffixes {
		if tail[i], err = openRegular(s.path(suffix), flag); err != nil && !errors.Is(err, fs.ErrNotExist) {
			closeAll(tail[:]...)
			return spool.Tail{}, err
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
func (s *claimFiles) free() (bool, error) {
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

// lives reports whether a child holds the lock, or may.
func (s *claimFiles) lives() bool {
	free, err := s.free()
	return !free && !errors.Is(err, errOdd)
}

// remove removes the files, but for a state that is nowhere else: that goes to
// what people look at.
func (s *claimFiles) remove() error {
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
func (s *claimFiles) kept(suffix string) bool {
	info, err := os.Lstat(s.path(suffix))
	return err == nil && info.Size() > 0 && os.Rename(s.path(suffix), s.dir.path("rejected", s.claim.String()+suffix)) == nil
}

// reject moves the files out of the way and returns where the lines are now. A
// plan, which holds secrets, a lock or an unused tail is of no use there, but may
// be something that only moving gets away.
func (s *claimFiles) reject() (string, error) {
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

// readSealed reads what a run has left in a slot.
func (s *claimFiles) readSealed(w provision.StateWrite) ([]byte, error) {
	if w.Slot < 0 || w.Slot >= len(stateSuffixes) {
		return nil, fmt.Errorf("there is no slot %d", w.Slot)
	}
	sealed, err := readUpTo(s.path(stateSuffixes[w.Slot]), maxSealed)
	if err != nil {
		return nil, err
	}
	if statechain.Digest(sealed) != w.Digest {
		return nil, errOverwritten
	}
	return sealed, nil
}

// setAside keeps in rejected/ what the database does not take for its content. A
// repeat after a crash has the same name.
func (s *claimFiles) setAside(r delivery.Refused) error {
	path := s.dir.path("rejected", fmt.Sprintf("%s.%s-%d.json", s.claim, r.Kind, r.Number))
	if kept, err := filepath.Glob(s.dir.path("rejected", s.claim.String()+".*-*.json")); err == nil && len(kept) >= mostSetAside {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			return nil // enough are kept
		}
	}
	content, err := json.MarshalIndent(struct {
		claimAbout
		Claim   string    `json:"claim"`
		Kind    string    `json:"kind"`
		N       int64     `json:"n"`
		At      time.Time `json:"set_aside_at"`
		Refused string    `json:"refused"`
		Content any       `json:"content"`
	}{s.about, s.claim.String(), r.Kind, r.Number, time.Now().UTC().Truncate(time.Second), r.Why.Error(), r.Content}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode what the database refuses: %w", err)
	}
	return durable.WriteFile(path, append(content, '\n'))
}

// mostSetAside is how many files rejected/ has at most of what the database did not
// take of one run. A template that makes more of it fills no disk.
const mostSetAside = 100
