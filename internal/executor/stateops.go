package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

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
	// Origin is a bundle without a plan: the engine, and where the state is.
	Origin() planbundle.Bundle
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
	change := changeOf(command, recorded, given)
	if err := r.session.report(provision.Detail{Plan: &change}); err != nil {
		return err
	}
	if waits, err := r.awaitsApproval(ctx, p, command, change, given); waits || err != nil {
		return err
	}
	// As before an apply: whoever changes the state must have the workspace.
	err = r.session.reportAndWait(ctx, provision.Detail{Stage: provision.StageApply, PlanDigest: r.job.Assignment.ApprovedPlan})
	if failure, refused := errors.AsType[*provision.Failure](err); refused && failure.Code == provision.CodeApprovalNeeded && r.approved == nil {
		return r.leaveChange(ctx, p, command, given, failure.Message) // the rules have become stricter meanwhile
	}
	if err != nil {
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

// replacesState reports whether the run puts another state in the stored one's place.
func (r *provisionRun) replacesState() bool {
	return r.operation() == provision.OperationState && r.snapshot.State != nil &&
		(r.snapshot.State.Command == "push" || r.snapshot.State.Command == "rollback")
}

// changeOf says what a command does to the state, for whom is to approve it.
func changeOf(command provision.StateCommand, recorded []provision.Resource, given []byte) (s provision.PlanSummary) {
	list := func(count *int, action string, addresses ...string) {
		*count += len(addresses)
		for _, address := range addresses {
			s.Resources = append(s.Resources, provision.PlannedChange{Address: address, Action: action})
		}
	}
	switch command.Command {
	case "rm":
		list(&s.Forget, "forget", command.Args...)
	case "import":
		list(&s.Import, "import", command.Args[0])
		s.Resources[0].ID = command.Args[1]
	case "mv":
		list(&s.Move, "move", command.Args[1])
		s.Resources[0].From = command.Args[0]
	case "push", "rollback":
		next, err := terraform.ReadState(given, nil)
		if err != nil {
			return s // the engine says what is wrong with it
		}
		list(&s.Forget, "forget", addressesOnlyIn(recorded, next.Resources)...)
		list(&s.Import, "import", addressesOnlyIn(next.Resources, recorded)...)
	}
	fitPlan(&s)
	return s
}

// addressesOnlyIn lists what the first has and the second has not.
func addressesOnlyIn(these, those []provision.Resource) (only []string) {
	for _, r := range these {
		if !slices.ContainsFunc(those, func(other provision.Resource) bool { return other.Address == r.Address }) {
			only = append(only, r.Address)
		}
	}
	return only
}

// approvable is what a person approves of a change to the state: the command, what
// it was given and the state that it changes, the last two as digests.
type approvable struct {
	Command provision.StateCommand `json:"command"`
	Given   string                 `json:"given,omitempty"`
	Over    string                 `json:"over"`
}

func (r *provisionRun) approvable(ctx context.Context, p stateEditor, command provision.StateCommand, given []byte) ([]byte, error) {
	state, err := p.PullState(ctx)
	if err != nil {
		return nil, err
	}
	what := approvable{Command: command, Over: planbundle.Digest(state)}
	if given != nil {
		what.Given = planbundle.Digest(given)
	}
	content, err := json.Marshal(what)
	if err != nil {
		return nil, fmt.Errorf("describe the change: %w", err)
	}
	return content, nil
}

// awaitsApproval leaves a change that a person must approve, and fails for one that
// is not what was approved.
func (r *provisionRun) awaitsApproval(ctx context.Context, p stateEditor, command provision.StateCommand, change provision.PlanSummary, given []byte) (waits bool, err error) {
	if r.approved != nil {
		content, err := r.approvable(ctx, p, command, given)
		if err == nil && string(content) != string(r.approved.Plan) {
			err = provision.Fail(provision.CodePlanStale, "The state, or what it is to become, has changed since this was approved. Nothing was changed; ask for it again.", nil)
		}
		return false, err
	}
	why := r.wantsApproval(change)
	if why == "" {
		return false, nil
	}
	return true, r.leaveChange(ctx, p, command, given, why)
}

func (r *provisionRun) leaveChange(ctx context.Context, p stateEditor, command provision.StateCommand, given []byte, why string) error {
	content, err := r.approvable(ctx, p, command, given)
	if err != nil {
		return err
	}
	saved := p.Origin()
	saved.Plan = content
	return r.leave(ctx, saved, why)
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
	if r.job.RequesterRefused != "" {
		return provision.Fail(provision.CodeOperationRefused, fmt.Sprintf(
			"A state holds secrets, so this agent seals it only to people whom its configuration names: %s.", r.job.RequesterRefused), nil)
	}
	key, err := seal.ParseRecipient(r.job.Requester)
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
	if err := r.writePlanFile(sealed); err != nil {
		return fmt.Errorf("leave the state to the agent: %w", err)
	}
	r.session.result = planbundle.Digest(sealed)
	r.log.System("The state (%d bytes) is sealed to %s and left for who asked for it.", len(state), seal.Fingerprint(r.job.Requester))
	return nil
}

// given reads what the agent handed down for a command that takes something.
func (r *provisionRun) given(command provision.StateCommand) ([]byte, error) {
	if command.Upload == "" && command.Version == 0 {
		return nil, nil
	}
	given, err := r.readPlanFile(r.job.Approved, terraform.MaxStateFile)
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
