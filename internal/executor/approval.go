package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
)

// strictness orders the rules for approval; what is not known is the strictest.
var strictness = []provision.Approval{"", provision.ApprovalNever, provision.ApprovalDestructive, provision.ApprovalAlways}

// approval is what a person must approve of a run, and what was approved.
type approval struct {
	*task
	// file is the agent's: see job.PlanFD.
	file *os.File
	// plan is the one that was approved; nil where none was.
	plan *planbundle.Bundle
}

// rule is the stricter of what the database says and what this agent's
// own policy says.
func (p *approval) rule() provision.Approval {
	rule := provision.ApprovalNever
	for _, said := range []provision.Approval{p.job.Assignment.Approval, p.job.Settings.Policy.Approval} {
		at := slices.Index(strictness, said)
		if at < 0 {
			return provision.ApprovalAlways
		}
		if at > slices.Index(strictness, rule) {
			rule = said
		}
	}
	return rule
}

// wants says why a plan must be approved by a person before it is
// applied, and "" if it need not be.
func (p *approval) wants(plan provision.PlanSummary) string {
	switch {
	case p.plan != nil:
		return ""
	case p.rule() == provision.ApprovalAlways:
		return "each plan here must be approved"
	case p.rule() != provision.ApprovalDestructive:
		return ""
	case p.operation() == provision.OperationDestroy:
		return "what destroys something must be approved"
	case p.replacesState():
		return "it replaces the whole state"
	case plan.Destroy+plan.Replace+plan.Forget > 0:
		return "it destroys, replaces or forgets something"
	}
	return ""
}

// leave leaves what must be approved, a plan or a change to the state, and has the run
// end so.
func (p *approval) leave(ctx context.Context, saved planbundle.Bundle, why string) error {
	digest, err := p.store(ctx, saved)
	if err != nil {
		return err
	}
	p.session.ends = &provision.Report{Status: provision.AwaitingApproval, Detail: provision.Detail{PlanDigest: digest}}
	p.log.System("The plan must be approved before it is applied: %s. Its digest is %s.", why, digest)
	return nil
}

// store leaves a plan to the agent and returns its digest.
func (p *approval) store(ctx context.Context, saved planbundle.Bundle) (digest string, err error) {
	a := p.job.Assignment
	snapshot, err := planbundle.SnapshotDigest(a.Snapshot)
	if err != nil {
		return "", err
	}
	saved.Provision, saved.Workspace, saved.Name, saved.Operation = a.ProvisionID, a.WorkspaceID, a.Workspace, a.Operation
	saved.Commit, saved.Snapshot = p.commit, snapshot
	content, err := saved.Encode()
	if err != nil {
		return "", err
	}
	if err := p.write(content); err != nil {
		return "", fmt.Errorf("leave the plan to the agent: %w", err)
	}
	if ctx.Err() != nil {
		return "", stopOr(ctx, fmt.Errorf("the plan was made, and nothing was changed: %w", context.Cause(ctx)))
	}
	return planbundle.Digest(content), nil
}

// take reads the plan that was approved, if one was: no other is made
// then.
func (p *approval) take() error {
	a := p.job.Assignment
	if a.ApprovedPlan == "" {
		return nil
	}
	content, err := p.read(0, p.job.Approved)
	if err != nil {
		return fmt.Errorf("read the approved plan: %w", err)
	}
	// The agent has looked already; here it is what is applied.
	if planbundle.Digest(content) != a.ApprovedPlan {
		return planbundle.Invalid("the agent handed another one down", nil)
	}
	bundle, err := planbundle.Decode(content)
	if err != nil {
		return planbundle.Invalid(err.Error(), err)
	}
	if err := bundle.Serves(a); err != nil {
		return err
	}
	p.plan = &bundle
	if a.Input != nil {
		p.log.System("Plan %s was carried out by a person: it alone is recorded, and no other is made.", a.ApprovedPlan)
	} else {
		p.log.System("Plan %s is applied: that very plan, and no other is made.", a.ApprovedPlan)
	}
	return nil
}

// sameCommit fails unless the template is the one of the approved plan.
func (p *approval) sameCommit() error {
	if p.plan != nil && p.plan.Commit != p.commit {
		return planbundle.Invalid(fmt.Sprintf("it was made from commit %s of the template, and its version is commit %s now", p.plan.Commit, p.commit), nil)
	}
	return nil
}

// write writes the whole of the agent's file, onto the disk.
func (p *approval) write(content []byte) error {
	_, err := p.file.WriteAt(content, 0)
	return errors.Join(err, p.file.Truncate(int64(len(content))), p.file.Sync())
}

// read reads from what the agent has handed down, length bytes at most.
func (p *approval) read(from, length int64) ([]byte, error) {
	return io.ReadAll(io.NewSectionReader(p.file, from, length))
}
