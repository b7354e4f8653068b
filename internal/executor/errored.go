package executor

import (
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
	left := t.erroredState()
	state, err := os.ReadFile(left)
	switch _, torn := terraform.ReadStateHeader(state); {
	case err == nil && torn == nil:
		if t.keepFollowing(state, room) == nil {
			// It is kept: a leftover would at most be pushed a second time.
			_ = os.Remove(left)
			return true, nil
		}
		return true, t.run.files.kept.take(left)
	case t.dumped != nil:
		return true, t.keepFollowing(t.dumped, room)
	case t.dumpedBytes > 0:
		return true, fmt.Errorf("the engine printed %d bytes of it, and no more than %d are held", t.dumpedBytes, terraform.MaxState)
	case err == nil && len(state) > 0:
		return true, errors.New("errored.tfstate is cut short, and the engine did not print the state either")
	}
	return false, nil
}

// keepFollowing keeps a state with a serial that the backend will accept.
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
	err = t.runner.PushState(ctx, file, terraform.PushOptions{KillAfter: t.run.job.Settings.CancelGrace})
	return !errors.Is(err, terraform.ErrStateConflict), err
}

// setTornAside moves a local state that is cut short out of the way. Terraform
// truncates the file before it writes, so a full disk leaves half a state,
// which neither init nor a push gets past. What was to be written is the state
// that is kept: without a whole one, nothing is moved.
func (t *terraformRun) setTornAside() error {
	if !t.backend.local {
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
