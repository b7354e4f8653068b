package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"filippo.io/age"

	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/terraform"
)

// stateEditor is a provisioner whose state can be read and changed by itself.
type stateEditor interface {
	// PullState returns the whole state, nil where there is none.
	PullState(ctx context.Context) ([]byte, error)
	// EditState changes the state; given is what the agent handed down for it.
	EditState(ctx context.Context, command provision.StateCommand, given []byte) error
	// Origin is a bundle without a plan: the engine, and where the state is.
	Origin() planbundle.Bundle
	// Recorded lists what the state records. What of it is sensitive is masked
	// from then on.
	Recorded(ctx context.Context) (results, error)
}

// credentialKeeper is a provisioner whose state has what signs in to its machines.
type credentialKeeper interface {
	// Credentials are those of the machine of that address, by their names.
	Credentials(address string) (map[string]string, error)
	// HandedOut are all machines with theirs.
	HandedOut() ([]provision.HandedOut, error)
}

// unlocker is a provisioner whose state has a lock that a dead engine may have left.
type unlocker interface {
	// Unlock releases the lock of that id on the state, also one that another process holds.
	Unlock(ctx context.Context, lockID string) error
}

// stateCommand reads or changes the state itself.
type stateCommand struct {
	*task
	approval *approval
	editor   stateEditor
	command  provision.StateCommand
	given    []byte // by the agent, for a command that takes something
}

func (c *stateCommand) run(ctx context.Context) error {
	recorded, err := c.editor.Recorded(ctx)
	if err != nil {
		return err
	}
	switch c.command.Command {
	case "list":
		for _, resource := range recorded.resources {
			c.log.System("%s", resource.Address)
		}
		c.log.System("The state records %s.", counted(len(recorded.resources), "resource"))
		return c.recorded(recorded)
	case "pull":
		return c.pull(ctx)
	case "reveal":
		return c.reveal()
	}
	if c.given, err = c.read(); err != nil {
		return err
	}
	change := changeOf(c.command, recorded.resources, c.given)
	if err := c.session.report(provision.Detail{Plan: &change}); err != nil {
		return err
	}
	if waits, err := c.awaitsApproval(ctx, change); waits || err != nil {
		return err
	}
	// As before an apply: whoever changes the state must have the workspace.
	err = c.session.reportAndWait(ctx, provision.Detail{Stage: provision.StageApply, PlanDigest: c.job.Assignment.ApprovedPlan})
	if failure, refused := errors.AsType[*provision.Failure](err); refused && failure.Code == provision.CodeApprovalNeeded && c.approval.plan == nil {
		return c.leave(ctx, failure.Message) // the rules have become stricter meanwhile
	}
	if err != nil {
		return err
	}
	if err := c.editor.EditState(ctx, c.command, c.given); err != nil {
		return err
	}
	if recorded, err = c.editor.Recorded(ctx); err != nil {
		return err
	}
	c.log.System("The state records %s now.", counted(len(recorded.resources), "resource"))
	return c.recorded(recorded)
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

func (c *stateCommand) approvable(ctx context.Context) ([]byte, error) {
	state, err := c.editor.PullState(ctx)
	if err != nil {
		return nil, err
	}
	what := approvable{Command: c.command, Over: planbundle.Digest(state)}
	if c.given != nil {
		what.Given = planbundle.Digest(c.given)
	}
	content, err := json.Marshal(what)
	if err != nil {
		return nil, fmt.Errorf("describe the change: %w", err)
	}
	return content, nil
}

// awaitsApproval leaves a change that a person must approve, and fails for one that
// is not what was approved.
func (c *stateCommand) awaitsApproval(ctx context.Context, change provision.PlanSummary) (waits bool, err error) {
	if c.approval.plan != nil {
		content, err := c.approvable(ctx)
		if err == nil && string(content) != string(c.approval.plan.Plan) {
			err = provision.Fail(provision.CodePlanStale, "The state, or what it is to become, has changed since this was approved. Nothing was changed; ask for it again.", nil)
		}
		return false, err
	}
	why := c.approval.wants(change)
	if why == "" {
		return false, nil
	}
	return true, c.leave(ctx, why)
}

func (c *stateCommand) leave(ctx context.Context, why string) error {
	content, err := c.approvable(ctx)
	if err != nil {
		return err
	}
	saved := c.editor.Origin()
	saved.Plan = content
	return c.approval.leave(ctx, saved, why)
}

// recorded reports what the state records.
func (c *stateCommand) recorded(found results) error {
	if err := c.session.report(provision.Detail{Stage: provision.StageOutputs}); err != nil {
		return err
	}
	c.exists(found)
	return nil
}

// sealsTo is the key of who asked, to which secrets are sealed; what names them.
func (c *stateCommand) sealsTo(what, how string) (age.Recipient, error) {
	if c.job.RequesterRefused != "" {
		return nil, provision.Fail(provision.CodeOperationRefused, fmt.Sprintf(
			"%s, so this agent seals them only to people whom its configuration names: %s.", what, c.job.RequesterRefused), nil)
	}
	key, err := seal.ParseRecipient(c.job.Requester)
	if err != nil {
		return nil, provision.Fail(provision.CodeStateFailed, fmt.Sprintf(
			"%s, which are only handed out sealed: name the public key to seal them to in config_snapshot.requester_key (%s does)", what, how), err)
	}
	return key, nil
}

// reveal leaves the credentials of one machine, or of all, to who asked for them, as an
// output that is sealed to their key.
func (c *stateCommand) reveal() error {
	key, err := c.sealsTo("Credentials are secrets", "trellis machines reveal")
	if err != nil {
		return err
	}
	keeper, keeps := c.editor.(credentialKeeper)
	if !keeps {
		return provision.Fail(provision.CodeStateFailed, "No credentials are recorded for this template's machines: a Terraform template gives them in sensitive outputs.", nil)
	}
	var credentials any
	whose, kind := "all machines", `["list",["object",{"name":"string","address":"string","port":"number","user":"string","password":"string","command":"string","others":["map","string"]}]]`
	if len(c.command.Args) == 0 {
		credentials, err = keeper.HandedOut()
	} else {
		whose, kind = oneLine(c.command.Args[0]), `["map","string"]`
		credentials, err = keeper.Credentials(c.command.Args[0])
	}
	if err != nil {
		return err
	}
	text, err := json.Marshal(credentials)
	if err != nil {
		return fmt.Errorf("write the credentials: %w", err)
	}
	sealed, err := seal.Armoured(key, text)
	if err != nil {
		return err
	}
	c.log.System("The credentials of %s are sealed to %s, the key of the requester.", whose, seal.Fingerprint(c.job.Requester))
	return c.session.report(provision.Detail{Stage: provision.StageOutputs, Outputs: map[string]provision.Output{
		provision.HandOutOutput: {Type: json.RawMessage(kind), Sensitive: true, Sealed: sealed},
	}})
}

// pull leaves the state to who asked for it, sealed to their key.
func (c *stateCommand) pull(ctx context.Context) error {
	key, err := c.sealsTo("A state holds secrets", "trellis state pull")
	if err != nil {
		return err
	}
	state, err := c.read()
	if state == nil && err == nil {
		state, err = c.editor.PullState(ctx)
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
	if err := c.approval.write(sealed); err != nil {
		return fmt.Errorf("leave the state to the agent: %w", err)
	}
	c.session.result = planbundle.Digest(sealed)
	c.log.System("The state (%d bytes) is sealed to %s and left for who asked for it.", len(state), seal.Fingerprint(c.job.Requester))
	return nil
}

// read reads what the agent handed down for a command that takes something.
func (c *stateCommand) read() ([]byte, error) {
	if c.command.Upload == "" && c.command.Version == 0 {
		return nil, nil
	}
	given, err := c.approval.read(c.job.Approved, terraform.MaxStateFile)
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
