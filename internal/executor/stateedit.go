package executor

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/terraform"
)

// Unlock implements stateEditor.
func (t *terraformRun) Unlock(ctx context.Context, lockID string) error {
	if t.run.managed != nil {
		return provision.Fail(provision.CodeStateFailed,
			"This workspace's state is managed: only its run locks it, and the lock ends with the run. There is nothing to unlock.", nil)
	}
	return t.whatEngineSaid(t.runner.Unlock(ctx, lockID))
}

// PullState implements stateEditor.
func (t *terraformRun) PullState(ctx context.Context) ([]byte, error) {
	state, err := t.runner.StoredState(ctx, t.pushOptions())
	if err != nil || len(bytes.TrimSpace(state)) == 0 {
		return nil, stateFailed(err)
	}
	if header, err := terraform.ReadStateHeader(state); err == nil && header == (terraform.StateHeader{Version: header.Version}) {
		return nil, nil // what an engine says of an empty backend
	}
	return state, nil
}

func (t *terraformRun) pushOptions() terraform.PushOptions {
	return terraform.PushOptions{KillAfter: t.run.job.Settings.CancelGrace}
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
func (t *terraformRun) Recorded(ctx context.Context) ([]provision.Resource, error) {
	state, err := t.runner.ShowState(ctx)
	if err != nil {
		return nil, err
	}
	t.run.log.Mask(terraform.SensitiveInState(state)...)
	return terraform.Recorded(state), nil
}

// EditState implements stateEditor.
func (t *terraformRun) EditState(ctx context.Context, c provision.StateCommand, given []byte) error {
	switch c.Command {
	case "rm":
		return t.whatEngineSaid(t.runner.RemoveFromState(ctx, c.Args...))
	case "mv":
		return t.whatEngineSaid(t.runner.MoveInState(ctx, c.Args[0], c.Args[1]))
	case "import":
		return t.whatEngineSaid(t.runner.Import(ctx, c.Args[0], c.Args[1], t.varFiles()...))
	case "push":
		return t.pushState(ctx, given, false)
	case "rollback":
		return t.pushState(ctx, given, true)
	case "adopt":
		return t.adopt(ctx)
	}
	return provision.Fail(provision.CodeStateFailed, fmt.Sprintf("This agent does not know the state command %q.", c.Command), nil)
}

// pushState stores a whole state. One that does not follow from what is stored
// is refused, unless it is to take its place: then it becomes the next version
// of it, so that whoever has written meanwhile is still noticed.
func (t *terraformRun) pushState(ctx context.Context, state []byte, replace bool) error {
	if _, err := terraform.ReadStateHeader(state); err != nil {
		return provision.Fail(provision.CodeStateFailed, "What is to be pushed is no Terraform state: "+reason(err), err)
	}
	if replace {
		stored, err := t.PullState(ctx)
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
	file := filepath.Join(t.run.files.secrets, "pushed.tfstate")
	if err := os.WriteFile(file, state, 0o600); err != nil {
		return fmt.Errorf("write the state to be pushed: %w", err)
	}
	return stateFailed(t.runner.PushState(ctx, file, t.pushOptions()))
}

// adopt makes the state of the backend that the template declares the workspace's
// first managed one.
func (t *terraformRun) adopt(ctx context.Context) error {
	m := t.run.managed
	if m.stored > 0 {
		return provision.Fail(provision.CodeStateFailed, fmt.Sprintf(
			"There is a managed state already (version %d), which nothing may replace: fetch the other one with terraform state pull, and look at both.", m.stored), nil)
	}
	state, err := t.PullState(ctx)
	switch {
	case err != nil:
		return err
	case state == nil:
		return provision.Fail(provision.CodeStateFailed, fmt.Sprintf("There is no state in %s.", t.backend.place), nil)
	}
	if err := m.Put(state); err != nil {
		return provision.Fail(provision.CodeStateFailed, "The state could not be taken over: "+reason(err), err)
	}
	t.run.log.System("The state in %s is taken over. It stays there as well: make sure that nobody uses it any more.", t.backend.place)
	return nil
}

// varFiles are the files with the run's variables.
func (t *terraformRun) varFiles() []string {
	files := []string{t.run.files.vars}
	if t.sealed != "" {
		files = append(files, t.sealed)
	}
	return files
}
