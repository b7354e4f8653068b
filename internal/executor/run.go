package executor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/logstream"
	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/source"
)

// provisionRun is one provision on its way through the stages.
type provisionRun struct {
	session  *session
	log      *logstream.Writer
	job      job.Job
	snapshot provision.Snapshot
	files    workDir
	commit   string // of the template, once it is checked out
	id       *isolation.Identity
	source   *source.Source
	// approved is the plan that was approved; nil where none was.
	approved *planbundle.Bundle
	managed  *managedState // nil: the state is elsewhere
	// planFile is the agent's file: see job.PlanFD.
	planFile *os.File
	// gitHelper is the argv that reaches githelper.Main.
	gitHelper []string
}

func newRun(s *session, j job.Job, id *isolation.Identity) (*provisionRun, error) {
	snapshot, err := provision.ParseSnapshot(j.Assignment.Snapshot)
	if err != nil {
		return nil, err
	}
	switch granted, op := j.Settings.Policy.Operations, j.Assignment.Operation; {
	case !slices.Contains(provision.Operations, op):
		return nil, provision.Fail(provision.CodeOperationRefused, fmt.Sprintf(
			"this agent does not know the operation %q; a newer one may", op), nil)
	case len(granted) > 0 && !slices.Contains(granted, op):
		return nil, provision.Fail(provision.CodeOperationRefused, fmt.Sprintf(
			"this agent's policy does not grant the operation %q; [policy] operations in its configuration lists what it does", op), nil)
	}
	// The database has checked it as well, when the row was inserted.
	if err := snapshot.CheckOperation(j.Assignment.Operation); err != nil {
		return nil, err
	}
	files, rescueErr := newWorkDir(j.Dirs)
	kept, err := files.kept.list()
	if rescueErr != nil || len(kept) > 0 {
		// Also without a run that gets as far as telling it: a killed run may
		// have left the state.
		s.keeps(true)
	}
	if err := errors.Join(rescueErr, err); err != nil {
		return nil, err
	}
	if err := files.prepare(); err != nil {
		return nil, err
	}
	return &provisionRun{
		session: s, log: s.log, job: j, snapshot: snapshot, files: files, id: id, planFile: os.NewFile(job.PlanFD, "plan"),
	}, nil
}

func (r *provisionRun) operation() provision.Operation { return r.job.Assignment.Operation }

func (r *provisionRun) cleanUp() {
	_ = r.planFile.Close() // what was written is on the disk
	if r.managed != nil {
		r.managed.Close()
	}
	if err := r.files.cleanUp(); err != nil {
		r.log.System("The run's files with variables could not be removed: %v", err)
	}
}

// stages carries the run from checkout to outputs.
func (r *provisionRun) stages(ctx context.Context) error {
	if r.operation() == provision.OperationInspect {
		return r.inspect(ctx)
	}
	if err := errors.Join(r.undecided(), r.takeApproved()); err != nil {
		return err
	}
	templateDir, commit, err := r.checkout(ctx)
	if err != nil {
		return r.stopOr(ctx, err)
	}
	r.commit = commit
	if err := r.sameCommit(); err != nil {
		return err
	}
	if err := r.session.report(provision.Detail{Stage: provision.StageValidate}); err != nil {
		return err
	}
	var p provisioner = newTerraformRun(r, templateDir)
	defer p.Close()
	if err := p.Validate(r.snapshot.TerraformVars, r.job.SealedVars); err != nil {
		return err
	}

	engine, err := p.Locate(ctx)
	if err != nil {
		return r.stopOr(ctx, err)
	}
	// From here on the template's own code runs, so here the database must have
	// agreed: to the commit, to the template on this workspace, to the state's
	// place.
	kept := r.session.unsaved
	engine.Stage, engine.Commit, engine.StateUnsaved = provision.StageInit, commit, &kept
	if err := r.session.reportAndWait(ctx, engine); err != nil {
		return r.stopOr(ctx, err)
	}
	if err := p.Prepare(ctx); err != nil {
		return r.stopOr(ctx, err)
	}
	// A plan runs what the template and its providers bring along.
	if err := r.settleIdentity(); err != nil {
		return err
	}
	if r.operation() == provision.OperationUnlock { // which storing a state may wait for
		return r.stopOr(ctx, r.unlock(ctx, p))
	}
	if kept {
		if err := r.storeKept(ctx, p); err != nil {
			return r.stopOr(ctx, err)
		}
		if err := r.session.reportAndWait(ctx, provision.Detail{StateUnsaved: new(false)}); err != nil {
			return r.stopOr(ctx, err)
		}
	}

	if r.operation() == provision.OperationState {
		return r.stopOr(ctx, r.stateCommand(ctx, p))
	}
	return r.planned(ctx, p)
}

// plan makes a plan, or takes the one that was approved, which is known already.
func (r *provisionRun) plan(ctx context.Context, p provisioner) (plan planned, err error) {
	if r.approved != nil {
		plan, err = p.Recall(ctx)
		return plan, r.stopOr(ctx, err)
	}
	if err := r.session.report(provision.Detail{Stage: provision.StagePlan}); err != nil {
		return plan, err
	}
	if plan, err = p.Plan(ctx); err != nil || r.operation() == provision.OperationRefresh {
		return plan, r.stopOr(ctx, err)
	}
	fitPlan(&plan.summary)
	return plan, r.session.report(provision.Detail{Plan: &plan.summary})
}

// planned plans, and carries out what the operation says of that.
func (r *provisionRun) planned(ctx context.Context, p provisioner) error {
	plan, err := r.plan(ctx, p)
	if err != nil {
		return err
	}
	if r.operation() == provision.OperationRefresh {
		return r.drifted(plan.drift)
	}
	if err := r.judge(ctx, plan.json); err != nil {
		return err
	}
	plan.json = nil // what it holds is as large as the state
	switch {
	case !plan.changes && r.operation() == provision.OperationDestroy:
		r.log.System("No changes: there is nothing to destroy.")
		return r.outputs(plan.found)
	case !plan.changes:
		r.log.System("No changes: the infrastructure is as the template says.")
		if r.operation() == provision.OperationPlan {
			return nil
		}
		return r.outputs(plan.found)
	case r.operation() == provision.OperationPlan:
		r.log.System("This was a plan only: nothing is applied.")
		return nil
	}
	if why := r.wantsApproval(plan.summary); why != "" {
		return r.leavePlan(ctx, p, why)
	}
	err = r.apply(ctx, p, plan.room)
	if failure, refused := errors.AsType[*provision.Failure](err); refused && failure.Code == provision.CodeApprovalNeeded && r.approved == nil {
		return r.leavePlan(ctx, p, failure.Message) // the rules have become stricter meanwhile
	}
	return err
}

// drifted reports what a refresh has found. The state is left as it is: what to
// do about drift is for a person to say.
func (r *provisionRun) drifted(drift []provision.PlannedChange) error {
	switch len(drift) {
	case 0:
		r.log.System("No drift: what exists is as the state says.")
	case 1:
		r.log.System("Drift: 1 resource has changed outside.")
	default:
		r.log.System("Drift: %d resources have changed outside.", len(drift))
	}
	return r.session.report(provision.Detail{Drift: fitDrift(drift)})
}

// apply asks the database, and applies the plan once it has said yes.
func (r *provisionRun) apply(ctx context.Context, p provisioner, size int64) error {
	room, err := reserve(r.files.kept.dir, size)
	if err != nil {
		return err
	}
	defer room.release()
	if err := r.session.reportAndWait(ctx, provision.Detail{Stage: provision.StageApply, Percent: new(0), PlanDigest: r.job.Assignment.ApprovedPlan}); err != nil {
		return r.stopOr(ctx, err)
	}
	progress := newProgress(r.session)
	r.files.applying = true // should this process panic
	defer func() {
		if !r.files.applying {
			r.files.kept.settled()
		}
	}()
	err = p.Apply(ctx, progress.on)
	progress.close()
	if err != nil {
		err = r.saveState(ctx, p, room, r.stopOr(ctx, err))
		r.resources(r.result(p).resources)
		return err
	}
	r.files.applying = false
	return r.outputs(r.result(p))
}

// stopOr returns what became of a run that was asked to stop, and err for one
// that was not. What was interrupted says so in the words of the stage.
func (r *provisionRun) stopOr(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	if failure := provision.AsFailure(err); failure.Code != provision.CodeInternal {
		return err
	}
	return provision.Fail(provision.CodeCancelled, sentence(strings.TrimSuffix(err.Error(), ": "+context.Cause(ctx).Error())), err)
}

func (r *provisionRun) notice(text string) {
	if text != "" {
		r.log.System("%s", text)
	}
}

// sentence begins with a capital and ends with a full stop.
func sentence(text string) string {
	text = strings.TrimSpace(text)
	if text == "" {
		return ""
	}
	text = strings.ToUpper(text[:1]) + text[1:]
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	return text
}
