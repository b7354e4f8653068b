package executor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/terraform"
)

// makeErroredState makes the file that the engine writes when it cannot store
// its state, still empty. Terraform takes a file that it cannot create (no
// inode left, no right to) for written, and prints the state only where writing
// fails. As the template sees the file, it is there before the plan is made.
func (t *terraformRun) makeErroredState() error {
	file, err := os.OpenFile(t.erroredState(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return provision.Fail(provision.CodeTemplateInvalid,
			erroredState+": the template has a link or a directory of this name, which is where the engine puts a state that it cannot store: remove it", err)
	case err != nil:
		return fmt.Errorf("prepare the template's directory: %w", err)
	}
	return file.Close()
}

func (t *terraformRun) erroredState() string { return filepath.Join(t.dir, erroredState) }

// KeepState implements provisioner.
func (t *terraformRun) KeepState(room ballast) (bool, error) {
	left, kept := t.erroredState(), t.run.files.kept
	state, err := terraform.ReadStateFile(left)
	nothing := errors.Is(err, fs.ErrNotExist) || err == nil && len(state) == 0
	odd := err != nil && !errors.Is(err, terraform.ErrStateTooLarge)
	if _, torn := terraform.ReadStateHeader(state); torn != nil {
		state = t.dumped
		if m := t.run.managed; m != nil && len(state) == 0 {
			state = m.Refused()
		}
	}
	if t.keepFollowing(state, room) == nil {
		// A leftover would at most be pushed a second time.
		_ = os.Remove(left)
		return true, nil
	}
	switch {
	case nothing && t.dumpedBytes == 0:
		return false, nil
	case nothing || odd:
		t.run.log.System("%s", t.lost(err))
		return true, kept.markLost()
	default: // whole or not
		return true, kept.take(left)
	}
}

// lost says what is known of a state that is neither stored nor kept.
func (t *terraformRun) lost(err error) string {
	switch {
	case t.dumpedBytes > terraform.MaxState:
		return fmt.Sprintf("The engine printed a state of %d bytes, and no more than %d are held: it is lost.", t.dumpedBytes, terraform.MaxState)
	case t.dumped != nil:
		return "The engine printed its state, and this agent's disk does not take it: it is lost."
	case t.dumpedBytes > 0:
		return "The engine was ended while it printed its state: it is lost."
	default:
		return fmt.Sprintf("%s, where the engine puts a state that it cannot store, is no file any more (%s): whether there was one is not known.", erroredState, reason(err))
	}
}

// keepFollowing keeps a whole state with a serial that the backend will accept.
func (t *terraformRun) keepFollowing(state []byte, room ballast) error {
	state, err := terraform.Follow(state, t.base.State)
	if err != nil {
		return err
	}
	return t.run.files.kept.write(state, room)
}

// StoreState implements provisioner.
func (t *terraformRun) StoreState(ctx context.Context, file string) (again bool, err error) {
	if err := t.setTornAside(); err != nil {
		return false, err
	}
	file, err = t.following(file)
	if err != nil {
		return true, err
	}
	if !t.note.intact() {
		// A template that ran the engine itself has left the record of another
		// backend, and the state would go there.
		if err := t.init(ctx); err != nil {
			return true, err
		}
	}
	err = t.runner.PushState(ctx, file, terraform.PushOptions{KillAfter: t.run.job.Settings.CancelGrace})
	if errors.Is(err, terraform.ErrStateConflict) {
		return false, provision.Fail(provision.CodeStateUnsaved, fmt.Sprintf(
			"%s There is another state in %s, so pushing the kept one by hand is refused as well. Compare the two (%s state pull shows the stored one), and bring over what only the kept one has (%s import).",
			sentence(provision.AsFailure(err).Message), t.backend.place, t.kind(), t.kind()), err)
	}
	return true, err
}

// following returns the file to push for a kept state: itself, or a copy with
// a serial that the backend will accept. A state that a killed run left, or one
// for whose copy there was no room, has it as the engine wrote it.
func (t *terraformRun) following(file string) (string, error) {
	state, err := terraform.ReadStateFile(file)
	if err != nil {
		return "", err
	}
	next, err := terraform.Follow(state, t.run.files.kept.began())
	if err != nil || bytes.Equal(next, state) {
		return file, err
	}
	pushed := filepath.Join(t.run.files.secrets, erroredState)
	return pushed, os.WriteFile(pushed, next, 0o600)
}

// setTornAside moves a local state that is cut short out of the way. Terraform
// truncates the file before it writes, so a full disk leaves half a state,
// which neither init nor a push gets past. What was to be written is the state
// that is kept: without a whole one, nothing is moved.
func (t *terraformRun) setTornAside() error {
	if !t.backend.local && !t.backend.managed {
		return nil
	}
	kept, err := t.run.files.kept.list()
	if err != nil || !slices.ContainsFunc(kept, isState) {
		return err // half a state is better than none
	}
	path := filepath.Join(t.run.files.kept.dir, localState)
	info, err := os.Stat(path)
	if err != nil || info.Size() == 0 || isState(path) {
		return nil //nolint:nilerr // there is none: nothing is in the way
	}
	if err := os.Rename(path, path+".torn"); err != nil {
		return provision.Fail(provision.CodeStateUnsaved, fmt.Sprintf("%s is cut short and cannot be moved out of the way: %s", path, reason(err)), err)
	}
	t.run.log.System("The state file %s is cut short; it is set aside as %s.torn.", path, localState)
	return nil
}
