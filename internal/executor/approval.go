package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
)

// strictness orders the rules for approval; what is not known is the strictest.
var strictness = []provision.Approval{"", provision.ApprovalNever, provision.ApprovalDestructive, provision.ApprovalAlways}

// approvalRule is the stricter of what the database says and what this agent's
// own policy says.
func (r *provisionRun) approvalRule() provision.Approval {
	rule := provision.ApprovalNever
	for _, said := range []provision.Approval{r.job.Assignment.Approval, r.job.Settings.Policy.Approval} {
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

// wantsApproval says why a plan must be approved by a person before it is
// applied, and "" if it need not be.
func (r *provisionRun) wantsApproval(plan provision.PlanSummary) string {
	switch {
	case r.approved != nil:
		return ""
	case r.approvalRule() == provision.ApprovalAlways:
		return "each plan here must be approved"
	case r.approvalRule() != provision.ApprovalDestructive:
		return ""
	case r.operation() == provision.OperationDestroy:
		return "what destroys something must be approved"
	case r.replacesState():
		return "it replaces the whole state"
	case plan.Destroy+plan.Replace+plan.Forget > 0:
		return "it destroys, replaces or forgets something"
	}
	return ""
}

// leavePlan leaves the plan to the agent, which stores it, and has the run end.
func (r *provisionRun) leavePlan(ctx context.Context, p provisioner, why string) error {
	saved, err := p.Save()
	if err != nil {
		return err
	}
	return r.leave(ctx, saved, why)
}

// leave leaves what must be approved, a plan or a change to the state.
func (r *provisionRun) leave(ctx context.Context, saved planbundle.Bundle, why string) error {
	a := r.job.Assignment
	snapshot, err := planbundle.SnapshotDigest(a.Snapshot)
	if err != nil {
		return err
	}
	saved.Provision, saved.Workspace, saved.Name, saved.Operation = a.ProvisionID, a.WorkspaceID, a.Workspace, a.Operation
	saved.Commit, saved.Snapshot = r.commit, snapshot
	content, err := saved.Encode()
	if err != nil {
		return err
	}
	if err := r.writePlanFile(content); err != nil {
		return fmt.Errorf("leave the plan to the agent: %w", err)
	}
	if ctx.Err() != nil {
		return r.stopOr(ctx, fmt.Errorf("the plan was made, and nothing was changed: %w", context.Cause(ctx)))
	}
	r.session.awaiting = planbundle.Digest(content)
	r.log.System("The plan must be approved before it is applied: %s. Its digest is %s.", why, r.session.awaiting)
	return nil
}

// takeApproved reads the plan that was approved, if one was: no other is made
// then.
func (r *provisionRun) takeApproved() error {
	a := r.job.Assignment
	if a.ApprovedPlan == "" {
		return nil
	}
	content, err := r.readPlanFile(0, r.job.Approved)
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
	r.approved = &bundle
	r.log.System("Plan %s was approved: that very plan is applied, and no other is made.", a.ApprovedPlan)
	return nil
}

// sameCommit fails unless the template is the one of the approved plan.
func (r *provisionRun) sameCommit() error {
	if r.approved != nil && r.approved.Commit != r.commit {
		return planbundle.Invalid(fmt.Sprintf("it was made from commit %s of the template, and its version is commit %s now", r.approved.Commit, r.commit), nil)
	}
	return nil
}

// writePlanFile writes the whole of the agent's file, onto the disk.
func (r *provisionRun) writePlanFile(content []byte) error {
	_, err := r.planFile.WriteAt(content, 0)
	return errors.Join(err, r.planFile.Truncate(int64(len(content))), r.planFile.Sync())
}

// readPlanFile reads from what the agent has handed down, length bytes at most.
func (r *provisionRun) readPlanFile(from, length int64) ([]byte, error) {
	return io.ReadAll(io.NewSectionReader(r.planFile, from, length))
}
