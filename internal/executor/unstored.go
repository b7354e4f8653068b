package executor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/terraform"
)

// unstoredState is a state that the engine could not store: left in the template's
// directory, or printed.
type unstoredState struct {
	*engineState
	init *engineInit
	base terraform.PlanBase // what the plan began from
	// dumped is a state that the engine printed as it could store it nowhere,
	// and how much of it was printed.
	dumped      []byte
	dumpedBytes int
}

// makeErroredState makes the file that the engine writes when it cannot store
// its state, still empty. Terraform takes a file that it cannot create (no
// inode left, no right to) for written, and prints the state only where writing
// fails. As the template sees the file, it is there before the plan is made.
func (u *unstoredState) makeErroredState() error {
	file, err := os.OpenFile(u.erroredState(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return provision.Fail(provision.CodeTemplateInvalid,
			erroredState+": the template has a link or a directory of this name, which is where the engine puts a state that it cannot store: remove it", err)
	case err != nil:
		return fmt.Errorf("prepare the template's directory: %w", err)
	}
	return file.Close()
}

func (u *unstoredState) erroredState() string { return filepath.Join(u.dir, erroredState) }

// KeepState implements provisioner.
func (u *unstoredState) KeepState(room reservedSpace) (bool, error) {
	left, kept := u.erroredState(), u.files.kept
	state, err := terraform.ReadStateFile(left)
	nothing := errors.Is(err, fs.ErrNotExist) || err == nil && len(state) == 0
	odd := err != nil && !errors.Is(err, terraform.ErrStateTooLarge)
	if _, torn := terraform.ReadStateHeader(state); torn != nil {
		state = u.dumped
		if m := u.managed; m != nil && len(state) == 0 {
			state = m.Refused()
		}
	}
	if u.keepFollowing(state, room) == nil {
		// A leftover would at most be pushed a second time.
		_ = os.Remove(left)
		return true, nil
	}
	switch {
	case nothing && u.dumpedBytes == 0:
		return false, nil
	case nothing || odd:
		u.log.System("%s", u.lost(err))
		return true, kept.markLost()
	default: // whole or not
		return true, kept.take(left)
	}
}

// lost says what is known of a state that is neither stored nor kept.
func (u *unstoredState) lost(err error) string {
	switch {
	case u.dumpedBytes > terraform.MaxState:
		return fmt.Sprintf("The engine printed a state of %d bytes, and no more than %d are held: it is lost.", u.dumpedBytes, terraform.MaxState)
	case u.dumped != nil:
		return "The engine printed its state, and this agent's disk does not take it: it is lost."
	case u.dumpedBytes > 0:
		return "The engine was ended while it printed its state: it is lost."
	default:
		return fmt.Sprintf("%s, where the engine puts a state that it cannot store, is no file any more (%s): whether there was one is not known.", erroredState, reason(err))
	}
}

// keepFollowing keeps a whole state with a serial that the backend will accept.
func (u *unstoredState) keepFollowing(state []byte, room reservedSpace) error {
	state, err := terraform.Follow(state, u.base.State)
	if err != nil {
		return err
	}
	return u.files.kept.write(state, room)
}

// StoreState implements provisioner.
func (u *unstoredState) StoreState(ctx context.Context, file string) (again bool, err error) {
	if err := u.setTornAside(); err != nil {
		return false, err
	}
	file, err = u.following(file)
	if err != nil {
		return true, err
	}
	if !u.init.note.intact() {
		// A template that ran the engine itself has left the record of another
		// backend, and the state would go there.
		if err := u.init.start(ctx); err != nil {
			return true, err
		}
	}
	err = u.runner.PushState(ctx, file, u.pushOptions())
	if errors.Is(err, terraform.ErrStateConflict) {
		return false, provision.Fail(provision.CodeStateUnsaved, fmt.Sprintf(
			"%s There is another state in %s, so pushing the kept one by hand is refused as well. Compare the two (%s state pull shows the stored one), and bring over what only the kept one has (%s import).",
			sentence(provision.AsFailure(err).Message), u.backend.place, u.kind, u.kind), err)
	}
	return true, err
}

// following returns the file to push for a kept state: itself, or a copy with
// a serial that the backend will accept. A state that a killed run left, or one
// for whose copy there was no room, has it as the engine wrote it.
func (u *unstoredState) following(file string) (string, error) {
	state, err := terraform.ReadStateFile(file)
	if err != nil {
		return "", err
	}
	next, err := terraform.Follow(state, u.files.kept.began())
	if err != nil || bytes.Equal(next, state) {
		return file, err
	}
	pushed := filepath.Join(u.files.secrets, erroredState)
	return pushed, os.WriteFile(pushed, next, 0o600)
}
