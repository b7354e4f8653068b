package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/templatefile"
	"github.com/tendril-run/tendril/internal/terraform"
	"github.com/tendril-run/tendril/internal/tfvars"
)

// provisionRun is one provision on its way through the stages.
type provisionRun struct {
	*task
	files    workDir
	id       *isolation.Identity
	checkout *checkout
	approval *approval
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
	t := &task{session: s, log: s.log, job: j, snapshot: snapshot}
	return &provisionRun{
		task: t, files: files, id: id, checkout: &checkout{task: t, into: files.source, id: id},
		approval: &approval{task: t, file: os.NewFile(job.PlanFD, "plan")},
	}, nil
}

func (r *provisionRun) cleanUp() {
	_ = r.approval.file.Close() // what was written is on the disk
	if err := r.files.cleanUp(); err != nil {
		r.log.System("The run's files with variables could not be removed: %v", err)
	}
}

// stages carries the run from checkout to outputs.
func (r *provisionRun) stages(ctx context.Context) error {
	if r.job.Check != nil {
		return r.check(ctx, *r.job.Check)
	}
	if r.operation() == provision.OperationInspect {
		return r.inspect(ctx)
	}
	if err := errors.Join(r.keptStore().undecided(), r.approval.take()); err != nil {
		return err
	}
	templateDir, err := r.template(ctx)
	if err != nil {
		return stopOr(ctx, err)
	}
	if err := r.approval.sameCommit(); err != nil {
		return err
	}
	if err := r.session.report(provision.Detail{Stage: provision.StageValidate}); err != nil {
		return err
	}
	p, err := r.provisioner(templateDir)
	if err != nil {
		return err
	}
	defer p.Close()
	if err := p.Validate(r.snapshot.TerraformVars, r.job.SealedVars); err != nil {
		return err
	}

	engine, err := p.Locate(ctx)
	if err != nil {
		return stopOr(ctx, err)
	}
	// From here on the template's own code runs, so here the database must have
	// agreed: to the commit, to the template on this workspace, to the state's
	// place.
	kept := r.session.unsaved
	engine.Stage, engine.Commit, engine.StateUnsaved = provision.StageInit, r.commit, &kept
	if err := r.session.reportAndWait(ctx, engine); err != nil {
		return stopOr(ctx, err)
	}
	if err := p.Prepare(ctx); err != nil {
		return stopOr(ctx, err)
	}
	// A plan runs what the template and its providers bring along.
	if err := r.checkout.settle(); err != nil {
		return err
	}
	if r.operation() == provision.OperationUnlock { // which storing a state may wait for
		return stopOr(ctx, r.unlock(ctx, p))
	}
	if kept {
		keeper, can := p.(stateKeeper)
		if !can {
			return provision.Fail(provision.CodeStateUnsaved,
				"A state that Terraform could not store is kept on this agent, and this template is not Terraform's: deploy the template that made it first.", nil)
		}
		if err := r.keptStore().storeAll(ctx, keeper); err != nil {
			return stopOr(ctx, err)
		}
		if err := r.session.reportAndWait(ctx, provision.Detail{StateUnsaved: new(false)}); err != nil {
			return stopOr(ctx, err)
		}
	}

	if r.operation() == provision.OperationState {
		return stopOr(ctx, (&stateCommand{task: r.task, approval: r.approval, editor: p.(stateEditor), command: *r.snapshot.State}).run(ctx)) //nolint:forcetypeassert // each is one
	}
	if r.operation() == provision.OperationPower {
		return stopOr(ctx, r.power(ctx, p))
	}
	return r.planned(ctx, p)
}

// provisioner is what carries the template out: Terraform, unless tendril.hcl says
// otherwise.
func (r *provisionRun) provisioner(dir string) (provisioner, error) {
	file, err := templatefile.Read(dir)
	if err != nil {
		return nil, err
	}
	r.about, r.health = file.About(), file.Health
	if saved := r.approval.plan; saved != nil && (ownEngine(saved.Engine) != ownEngine(string(file.Kind)) || ownEngine(saved.Engine) && saved.Engine != string(file.Kind)) {
		return nil, planbundle.Invalid("it was made by "+saved.Engine+", and the template is carried out by something else now", nil)
	}
	g := given{
		task: r.task, dir: dir, kind: r.kind(), files: r.files, id: r.id, checkout: r.checkout,
		approved: r.approval.plan, gitHelper: r.gitHelper,
	}
	switch {
	case file.InMachine != nil && file.Kind != templatefile.ByMachine:
		return nil, provision.Fail(provision.CodeTemplateInvalid, "tendril.hcl: this agent runs commands in machines (after) for provisioner \"machine\" alone", nil)
	case file.Kind == templatefile.Terraform:
		return newTerraformRun(g, file), nil
	case file.Kind == templatefile.ByScript && file.Script.Lines:
		return newLinesRun(&machineRun{given: g, file: file}), nil
	case file.Kind == templatefile.ByScript:
		return &machineRun{given: g, file: file}, nil
	case file.Kind == templatefile.ByHand:
		return &manualRun{machineRun: &machineRun{given: g, file: file, inPlace: []string{"cores", "memory", "address"}}, answer: r.job.Assignment.Input}, nil
	case file.Kind == templatefile.ByMachine:
		return newPoolRun(g, file), nil
	}
	return nil, provision.Fail(provision.CodeTemplateInvalid, fmt.Sprintf("tendril.hcl: this agent does not carry out templates of the provisioner %q yet", file.Kind), nil)
}

// template checks the template out and returns its directory.
func (r *provisionRun) template(ctx context.Context) (dir string, err error) {
	if dir, err = r.checkout.get(ctx); err != nil {
		return "", err
	}
	if err := r.files.forgetShippedState(); err != nil {
		return "", fmt.Errorf("look through the checkout: %w", err)
	}
	r.log.System("Checked out commit %s", r.commit)
	return dir, nil
}

// inspect tells what the template declares. It needs no engine, and runs nothing.
func (r *provisionRun) inspect(ctx context.Context) error {
	templateDir, err := r.template(ctx)
	if err != nil {
		return stopOr(ctx, err)
	}
	if err := r.session.report(provision.Detail{Stage: provision.StageValidate}); err != nil {
		return err
	}
	template, err := tfvars.Load(templateDir, r.kind())
	if err != nil {
		return err
	}
	declared, err := template.Declared()
	if err != nil {
		return err
	}
	file, err := templatefile.Read(templateDir)
	if err == nil {
		err = file.CheckVariables(declared)
	}
	if err != nil {
		return err
	}
	r.log.System("The template declares %s.", counted(len(declared), "variable"))
	// With the commit, and acknowledged: what it means must be pinned by then.
	return stopOr(ctx, r.session.reportAndWait(ctx, provision.Detail{Commit: r.commit, Variables: tfvars.Fit(declared, variablesLimit), About: file.About()}))
}

// unlock releases the lock that somebody holds on the state.
func (r *provisionRun) unlock(ctx context.Context, p provisioner) error {
	id := r.snapshot.LockID
	u, can := p.(unlocker)
	if !can {
		return provision.Fail(provision.CodeStateFailed, "The state of this template has no lock: there is nothing to unlock.", nil)
	}
	if err := u.Unlock(ctx, id); err != nil {
		return err
	}
	r.log.System("The lock %s on the state is released.", id)
	return nil
}

// power starts, stops or restarts machines.
func (r *provisionRun) power(ctx context.Context, p provisioner) error {
	switcher, can := p.(powerSwitch)
	if !can {
		return provision.Fail(provision.CodeOperationRefused, "This template's provisioner can't start or stop machines: do it in their cloud. Nothing was done.", nil)
	}
	progress := newProgress(r.session)
	err := switcher.Power(ctx, progress)
	progress.close()
	r.exists(r.result(p))
	return err
}

// plan makes a plan, or takes the one that was approved, which is known already.
func (r *provisionRun) plan(ctx context.Context, p provisioner) (plan planned, err error) {
	if r.approval.plan != nil {
		plan, err = p.Recall(ctx)
		return plan, stopOr(ctx, err)
	}
	if err := r.session.report(provision.Detail{Stage: provision.StagePlan}); err != nil {
		return plan, err
	}
	if plan, err = p.Plan(ctx); err != nil || r.operation() == provision.OperationRefresh {
		return plan, stopOr(ctx, err)
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
		r.exists(plan.found)
		return r.drifted(plan.drift)
	}
	if err := (policyHook{r.task, r.files.secrets, r.id}).judge(ctx, plan.json); err != nil {
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
	if why := r.approval.wants(plan.summary); why != "" {
		return r.leavePlan(ctx, p, why)
	}
	if byHand, is := p.(asker); is && r.job.Assignment.Input == nil {
		return r.ask(ctx, p, byHand)
	}
	err = r.apply(ctx, p, plan.room)
	if failure, refused := errors.AsType[*provision.Failure](err); refused && failure.Code == provision.CodeApprovalNeeded && r.approval.plan == nil {
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
	begins := provision.Detail{Stage: provision.StageApply, Percent: new(0), PlanDigest: r.job.Assignment.ApprovedPlan}
	if d, can := p.(detacher); can && r.job.MaySetDown && d.Detaches() {
		// Stored before it is applied: when the run is set down there may be no time.
		begins.Detachable = true
		if r.approval.plan == nil {
			saved, err := p.Save()
			if err == nil {
				begins.PlanDigest, err = r.approval.store(ctx, saved)
			}
			if err != nil {
				return err
			}
		}
	}
	if err := r.session.reportAndWait(ctx, begins); err != nil {
		return stopOr(ctx, err)
	}
	progress := newProgress(r.session)
	r.files.applying = true // should this process panic
	defer func() {
		if !r.files.applying {
			r.files.kept.settled()
		}
	}()
	err = p.Apply(ctx, progress)
	progress.close()
	if errors.Is(err, errDetached) {
		r.files.applying = false // its state is stored as it goes on
		return r.setDown(ctx, p)
	}
	if err != nil {
		err = r.saveState(ctx, p, room, stopOr(ctx, err))
		r.exists(r.result(p))
		return err
	}
	r.files.applying = false
	return r.outputs(r.result(p))
}

// setDown ends the run for another agent to take up.
func (r *provisionRun) setDown(ctx context.Context, p provisioner) error {
	r.exists(r.result(p))
	if ctx.Err() != nil && r.session.stopReason() != job.StopAgentGone {
		return provision.Fail(provision.CodeApplyFailed, "The provisioner has detached, and what it began continues: deploy again to take it up, or destroy it.", context.Cause(ctx))
	}
	r.log.System("The provisioner has detached: what it began continues. This agent sets the run down.")
	r.session.ends = &provision.Report{Status: provision.SetDown}
	return nil
}

// saveState deals with what a failed apply has left, and returns what the run
// failed with.
func (r *provisionRun) saveState(ctx context.Context, p provisioner, room reservedSpace, failed error) error {
	keeper, keeps := p.(stateKeeper)
	if !keeps { // it is stored, or nothing goes on
		r.files.applying = false
		return failed
	}
	left, err := keeper.KeepState(room)
	room.release()
	r.files.applying = err != nil // what is left lies in the work directory, if it is anywhere
	if !left {
		return failed
	}
	if err != nil {
		r.session.keeps(true)
		return provision.Fail(provision.CodeStateUnsaved, fmt.Sprintf(
			"The state of this run could neither be stored nor kept: %s. The next run in this workspace looks for it once more; if it finds none, what this run created must be imported or removed by hand. The run itself: %s",
			reason(err), provision.AsFailure(failed).Message), errors.Join(err, failed))
	}
	r.log.System("The engine could not store its state. Nothing else happens in this workspace before that is settled.")
	// At once: should this process be killed, the database still learns of it.
	r.session.keeps(true)
	if err := r.keptStore().storeAll(ctx, keeper); err != nil {
		failure := provision.AsFailure(err)
		return provision.Fail(failure.Code, failure.Message+" The run itself: "+provision.AsFailure(failed).Message, errors.Join(err, failed))
	}
	r.session.keeps(false)
	failure := provision.AsFailure(failed)
	return provision.Fail(failure.Code, sentence(failure.Message)+" The state was stored after all: what was done is in it. Deploy again to finish.", failed)
}

func (r *provisionRun) keptStore() keptStore { return keptStore{r.task, r.files.kept, r.kind()} }

// leavePlan leaves the plan to the agent, which stores it, and has the run end.
func (r *provisionRun) leavePlan(ctx context.Context, p provisioner, why string) error {
	saved, err := p.Save()
	if err != nil {
		return err
	}
	return r.approval.leave(ctx, saved, why)
}

// ask leaves to a person what the plan says, and has the run end so.
func (r *provisionRun) ask(ctx context.Context, p provisioner, byHand asker) error {
	request, err := byHand.Ask()
	if err != nil {
		return err
	}
	digest := "" // of one that is approved nobody else may be stored
	if r.approval.plan == nil {
		saved, err := p.Save()
		if err == nil {
			digest, err = r.approval.store(ctx, saved)
		}
		if err != nil {
			return err
		}
	}
	r.session.ends = &provision.Report{Status: provision.AwaitingInput, Detail: provision.Detail{PlanDigest: digest, Input: &request}}
	return nil
}

// result asks what there is after an apply, also of a run that is being stopped,
// within its grace.
func (r *provisionRun) result(p provisioner) results {
	limited, cancel := context.WithTimeout(r.session.grace, resultPatience)
	defer cancel()
	return p.Result(limited)
}

// kind is the engine that made the approved plan, else the one that the snapshot
// asks for, else the agent's: each reads files of its own.
func (r *provisionRun) kind() string {
	if r.approval.plan != nil && !ownEngine(r.approval.plan.Engine) {
		return r.approval.plan.Engine
	}
	return cmp.Or(r.snapshot.Terraform.Engine, r.job.Settings.Engine.Kind, terraform.Terraform)
}

// stopOr returns what became of a run that was asked to stop, and err for one
// that was not. What was interrupted says so in the words of the stage.
func stopOr(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	if failure := provision.AsFailure(err); failure.Code != provision.CodeInternal {
		return err
	}
	return provision.Fail(provision.CodeCancelled, sentence(strings.TrimSuffix(err.Error(), ": "+context.Cause(ctx).Error())), err)
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
