package executor

import (
	"context"
	"fmt"

	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/terraform"
)

// stateEditor is what a provisioner offers beside plan and apply.
type stateEditor interface {
	// Unlock releases the lock of that id on the state, whoever holds it.
	Unlock(ctx context.Context, lockID string) error
	// PullState returns the whole state, nil where there is none.
	PullState(ctx context.Context) ([]byte, error)
	// EditState changes the state; given is what the agent handed down for it.
	EditState(ctx context.Context, command provision.StateCommand, given []byte) error
	// Recorded lists what the state records. What of it is sensitive is masked
	// from then on.
	Recorded(ctx context.Context) ([]provision.Resource, error)
}

// unlock releases the lock that somebody holds on the state.
func (r *provisionRun) unlock(ctx context.Context, p stateEditor) error {
	id := r.snapshot.LockID
	if err := p.Unlock(ctx, id); err != nil {
		return err
	}
	r.log.System("The lock %s on the state is released.", id)
	return nil
}

// stateCommand reads or changes the state itself.
func (r *provisionRun) stateCommand(ctx context.Context, p stateEditor) error {
	command := *r.snapshot.State
	recorded, err := p.Recorded(ctx)
	if err != nil {
		return err
	}
	switch command.Command {
	case "list":
		for _, resource := range recorded {
			r.log.System("%s", resource.Address)
		}
		r.log.System("The state records %s.", counted(len(recorded), "resource"))
		return r.recorded(recorded)
	case "pull":
		return r.pullState(ctx, p, command)
	}
	given, err := r.given(command)
	if err != nil {
		return err
	}
	// As before an apply: whoever changes the state must have the workspace.
	if err := r.session.reportAndWait(ctx, provision.Detail{Stage: provision.StageApply}); err != nil {
		return err
	}
	if err := p.EditState(ctx, command, given); err != nil {
		return err
	}
	if recorded, err = p.Recorded(ctx); err != nil {
		return err
	}
	r.log.System("The state records %s now.", counted(len(recorded), "resource"))
	return r.recorded(recorded)
}

// recorded reports what the state records.
func (r *provisionRun) recorded(resources []provision.Resource) error {
	if err := r.session.report(provision.Detail{Stage: provision.StageOutputs}); err != nil {
		return err
	}
	r.resources(resources)
	return nil
}

// pullState leaves the state to who asked for it, sealed to their key.
func (r *provisionRun) pullState(ctx context.Context, p stateEditor, command provision.StateCommand) error {
	key, err := seal.ParseRecipient(r.snapshot.RequesterKey)
	if err != nil {
		return provision.Fail(provision.CodeStateFailed,
			"A state holds secrets, so it is handed out sealed only: name the public key to seal it to in config_snapshot.requester_key (trellis state pull does)", err)
	}
	state, err := r.given(command)
	if state == nil && err == nil {
		state, err = p.PullState(ctx)
	}
	switch {
	case err != nil:
		return err
	case state == nil:
		return provision.Fail(provision.CodeStateFailed, "There is no state in this workspace yet.", nil)
	}
	sealed, err := seal.To(key, state)
	if err != nil {
		return err
	}
	if err := writePlanFile(sealed); err != nil {
		return fmt.Errorf("leave the state to the agent: %w", err)
	}
	r.session.result = planbundle.Digest(sealed)
	r.log.System("The state (%d bytes) is sealed to %s and left for who asked for it.", len(state), seal.Fingerprint(r.snapshot.RequesterKey))
	return nil
}

// given reads what the agent handed down for a command that takes something.
func (r *provisionRun) given(command provision.StateCommand) ([]byte, error) {
	if command.Upload == "" && command.Version == 0 {
		return nil, nil
	}
	given, err := readPlanFile(terraform.MaxStateFile)
	if err != nil {
		return nil, fmt.Errorf("read what the agent handed down: %w", err)
	}
	if len(given) == 0 {
		return nil, provision.Fail(provision.CodeStateFailed, "There is nothing to store: what was uploaded is empty, or there is no such version.", nil)
	}
	return given, nil
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// adopts reports whether the run takes over the state of the template's backend.
func (r *provisionRun) adopts() bool {
	return r.operation() == provision.OperationState && r.snapshot.State != nil && r.snapshot.State.Command == "adopt"
}

// plans reports whether the operation makes a plan, which notices that an
// earlier run's init does not serve it.
func (r *provisionRun) plans() bool {
	return r.operation() != provision.OperationUnlock && r.operation() != provision.OperationState
}
