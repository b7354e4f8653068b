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

	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/terraform"
)

// engineState is the state of a workspace, as its engine reads and changes it. It
// implements stateEditor.
type engineState struct {
	*engineRun
	varFiles []string // with the run's variables
}

// Unlock implements stateEditor.
func (s *engineState) Unlock(ctx context.Context, lockID string) error {
	if s.managed != nil {
		return provision.Fail(provision.CodeStateFailed,
			"This workspace's state is managed: only its run locks it, and the lock ends with the run. There is nothing to unlock.", nil)
	}
	return whatEngineSaid(s.runner.Unlock(ctx, lockID))
}

// PullState implements stateEditor.
func (s *engineState) PullState(ctx context.Context) ([]byte, error) {
	state, err := s.pullState(ctx)
	if err != nil || len(bytes.TrimSpace(state)) == 0 {
		return nil, stateFailed(err)
	}
	if header, err := terraform.ReadStateHeader(state); err == nil && header == (terraform.StateHeader{Version: header.Version}) {
		return nil, nil // what an engine says of an empty backend
	}
	return state, nil
}

// stateFailed is what a command fails with where an apply would have left a state
// that is not stored.
func stateFailed(err error) error {
	if err == nil {
		return nil
	}
	failure := *provision.AsFailure(err)
	if failure.Code == provision.CodeStateUnsaved {
		failure.Code = provision.CodeStateFailed
	}
	return &failure
}

// Recorded implements stateEditor.
func (s *engineState) Recorded(ctx context.Context) (results, error) {
	state, err := s.runner.ShowState(ctx)
	if err != nil {
		return results{}, err
	}
	s.log.Mask(terraform.SensitiveInState(state)...)
	return results{resources: terraform.Recorded(state)}, nil
}

// EditState implements stateEditor.
func (s *engineState) EditState(ctx context.Context, c provision.StateCommand, given []byte) error {
	switch c.Command {
	case "rm":
		return whatEngineSaid(s.runner.RemoveFromState(ctx, c.Args...))
	case "mv":
		return whatEngineSaid(s.runner.MoveInState(ctx, c.Args[0], c.Args[1]))
	case "import":
		return whatEngineSaid(s.runner.Import(ctx, c.Args[0], c.Args[1], s.varFiles...))
	case "push":
		return s.pushState(ctx, given, false)
	case "rollback":
		return s.pushState(ctx, given, true)
	case "adopt":
		return s.adopt(ctx)
	}
	return provision.Fail(provision.CodeStateFailed, fmt.Sprintf("This agent does not know the state command %q.", c.Command), nil)
}

// pushState stores a whole state. One that does not follow from what is stored
// is refused, unless it is to take its place: then it becomes the next version
// of it, so that a write by somebody else in between is still noticed.
func (s *engineState) pushState(ctx context.Context, state []byte, replace bool) error {
	if _, err := terraform.ReadStateHeader(state); err != nil {
		return provision.Fail(provision.CodeStateFailed, "What is to be pushed is no Terraform state: "+reason(err), err)
	}
	if replace {
		stored, err := s.PullState(ctx)
		if err != nil {
			return err
		}
		if stored != nil {
			over, err := terraform.ReadStateHeader(stored)
			if err != nil {
				return err
			}
			if state, err = terraform.Succeed(state, over); err != nil {
				return err
			}
		}
	}
	file := filepath.Join(s.files.secrets, "pushed.tfstate")
	if err := os.WriteFile(file, state, 0o600); err != nil {
		return fmt.Errorf("write the state to be pushed: %w", err)
	}
	return stateFailed(s.runner.PushState(ctx, file, s.pushOptions()))
}

// adopt makes the state of the backend that the template declares the workspace's
// first managed one.
func (s *engineState) adopt(ctx context.Context) error {
	m := s.managed
	if m.stored > 0 {
		return provision.Fail(provision.CodeStateFailed, fmt.Sprintf(
			"There is a managed state already (version %d), which nothing may replace: fetch the other one with terraform state pull, and compare both.", m.stored), nil)
	}
	state, err := s.PullState(ctx)
	switch {
	case err != nil:
		return err
	case state == nil:
		return provision.Fail(provision.CodeStateFailed, fmt.Sprintf("There is no state in %s.", s.backend.place), nil)
	}
	if err := m.Put(state); err != nil {
		return provision.Fail(provision.CodeStateFailed, "The state could not be taken over: "+reason(err), err)
	}
	s.log.System("The state in %s is taken over. It stays there as well: make sure that nobody uses it any more.", s.backend.place)
	return nil
}

// Origin implements stateEditor.
func (s *engineState) Origin() planbundle.Bundle {
	return planbundle.Bundle{Engine: s.engine.Kind, EngineVersion: s.engine.Version, State: s.backend.place}
}

// takeOver makes a state that is a file of this agent's the workspace's first
// managed one. The file stays where it is; nobody reads it any more once there
// is a managed state, so it cannot be taken over twice.
func (s *engineState) takeOver() error {
	if m := s.managed; m == nil || m.stored > 0 || len(m.State()) > 0 {
		return nil
	}
	if err := s.setTornAside(); err != nil {
		return err
	}
	path := filepath.Join(s.job.Dirs.State, localState)
	state, err := terraform.ReadStateFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && len(state) == 0:
		return s.beginEmpty()
	case err != nil:
		return provision.Fail(provision.CodeStateInvalid, fmt.Sprintf("the workspace's state in %s, which is to be taken over, cannot be read: %s", path, reason(err)), err)
	}
	if _, err := terraform.ReadStateHeader(state); err != nil {
		return provision.Fail(provision.CodeStateInvalid, fmt.Sprintf(
			"%s, the workspace's state, is to be taken over, and is not a whole state: fix it, or remove it if nothing exists that it knew of", path), err)
	}
	if err := s.managed.Put(state); err != nil {
		return fmt.Errorf("take the state in %s over: %w", path, err)
	}
	s.log.System("The workspace's state was a file of this agent's. It is taken over, and kept in the database from now on.")
	return nil
}

// beginEmpty fails where something exists in a workspace whose managed state is
// empty: what exists would be made once more. Commands on the state, which can
// bring it in, may go on; and so may a run that stores a kept one before it plans.
func (s *engineState) beginEmpty() error {
	if !s.job.Assignment.HasResources || !s.plans() || s.session.unsaved {
		return nil
	}
	return provision.Fail(provision.CodeStateInvalid,
		"Something exists in this workspace (trellis resources), and its managed state is empty: the state is elsewhere, and with an empty one everything would be made a second time. Bring it in: `trellis state adopt` takes it over from the backend that the template declares, `trellis state push` from a file. If nothing exists any more, push an empty state.", nil)
}

// setTornAside moves a local state that is cut short out of the way. Terraform
// truncates the file before it writes, so a full disk leaves half a state,
// which neither init nor a push gets past. What was to be written is the state
// that is kept: without a whole one, nothing is moved.
func (s *engineState) setTornAside() error {
	if !s.backend.local && !s.backend.managed {
		return nil
	}
	kept, err := s.files.kept.list()
	if err != nil || !slices.ContainsFunc(kept, isState) {
		return err // half a state is better than none
	}
	path := filepath.Join(s.files.kept.dir, localState)
	info, err := os.Stat(path)
	if err != nil || info.Size() == 0 || isState(path) {
		return nil //nolint:nilerr // there is none: nothing is in the way
	}
	if err := os.Rename(path, path+".torn"); err != nil {
		return provision.Fail(provision.CodeStateUnsaved, fmt.Sprintf("%s is cut short and cannot be moved out of the way: %s", path, reason(err)), err)
	}
	s.log.System("The state file %s is cut short; it is set aside as %s.torn.", path, localState)
	return nil
}

// raw reads the state where it is, or what is kept of it.
func (s *engineState) raw(ctx context.Context) ([]byte, error) {
	switch {
	case s.session.unsaved:
		kept, err := s.files.kept.list()
		if err == nil && len(kept) == 0 {
			err = fmt.Errorf("it is not stored")
		}
		if err != nil {
			return nil, err
		}
		return terraform.ReadStateFile(kept[len(kept)-1])
	case s.managed != nil:
		return s.managed.State(), nil
	case s.backend.local:
		state, err := terraform.ReadStateFile(s.backend.place)
		if errors.Is(err, os.ErrNotExist) { // nothing was ever created
			return nil, nil
		}
		return state, err
	default:
		// The one engine process that a run with a backend of its template's has
		// more: nothing else knows the values of sensitive outputs and what an
		// attribute is that was unknown before. Unlike show it starts no provider.
		return s.pullState(ctx)
	}
}

func (s *engineState) pullState(ctx context.Context) ([]byte, error) {
	return s.runner.StoredState(ctx, s.pushOptions())
}

func (s *engineState) pushOptions() terraform.PushOptions {
	return terraform.PushOptions{KillAfter: s.job.Settings.CancelGrace}
}
