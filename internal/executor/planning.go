package executor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/terraform"
)

// Plan implements provisioner.
func (t *terraformRun) Plan(ctx context.Context) (planned, error) {
	changes, err := t.makePlan(ctx)
	if t.reused && terraform.WantsInit(err) {
		t.run.log.System("What an earlier %s init made does not serve any more.", t.kind())
		if err := t.init(ctx); err != nil {
			return planned{}, err
		}
		changes, err = t.makePlan(ctx)
	}
	if err != nil {
		return planned{}, err
	}
	if err := t.seal(); err != nil {
		return planned{}, err
	}
	return t.show(ctx, changes)
}

// show reads the plan that was made, or approved.
func (t *terraformRun) show(ctx context.Context, changes bool) (_ planned, err error) {
	var raw bytes.Buffer
	t.plan, err = t.runner.ShowPlanTo(ctx, t.sealedPlan.path(), t.rawPlan(&raw))
	endDescendants(t.run.log) // nothing that the template started runs while the hook judges
	if err == nil {
		t.run.log.Mask(terraform.SensitiveValues(t.plan)...)
	}
	t.runner.PrintPlan()
	if err != nil {
		return planned{}, err
	}
	t.warnOfUnmatched()
	if t.run.operation() == provision.OperationRefresh {
		t.note.put()
		return planned{drift: terraform.Drift(t.plan)}, nil
	}
	summary := terraform.Summarise(t.plan)
	t.steps = terraform.Steps(summary)
	if changes && t.run.operation() != provision.OperationPlan {
		// An encrypted plan, which OpenTofu can make, does without.
		t.base, _ = terraform.ReadPlanBase(t.sealedPlan.path())
		return planned{summary: summary, changes: true, room: t.base.Room, json: raw.Bytes()}, nil
	}
	t.note.put()
	outputs, err := terraform.PlannedOutputs(t.plan)
	found := results{t.run.outputsFor(outputs), terraform.Resources(t.plan, terraform.Applied{})}
	return planned{summary: summary, changes: changes, found: found, json: raw.Bytes()}, err
}

// rawPlan keeps the plan's JSON where a policy hook wants it.
func (t *terraformRun) rawPlan(raw *bytes.Buffer) io.Writer {
	if len(t.run.job.Settings.Policy.Hook) == 0 {
		return nil
	}
	return raw
}

func (t *terraformRun) makePlan(ctx context.Context) (changes bool, err error) {
	operation, snapshot := t.run.operation(), t.run.snapshot
	// The engine keeps the mode of a file that is there. What init has started may
	// have put a pipe in its place, which nobody would read.
	if err := errors.Join(isolation.RemoveAll(t.run.files.plan), writeNew(t.run.files.plan, nil)); err != nil {
		return false, fmt.Errorf("make the plan's file: %w", err)
	}
	t.maskRemoteState(ctx)
	progress := newQuiet(t.run.session)
	defer progress.close()
	var looking func(int)
	if t.exist > 0 {
		looking = func(at int) { progress.at(min(100, at*100/t.exist)) }
	}
	changes, err = t.runner.Plan(ctx, terraform.PlanOptions{
		VarFile: t.run.files.vars, SealedVarFile: t.sealed, Out: t.run.files.plan,
		Destroy: operation == provision.OperationDestroy, RefreshOnly: operation == provision.OperationRefresh,
		Targets: snapshot.Targets, Replace: snapshot.Replace, Refreshing: looking, KeepText: true,
	})
	if err != nil {
		t.printFailedPlan(ctx)
	}
	return changes, t.whatEngineSaid(err)
}

// printFailedPlan prints how far a plan got that failed, which some versions
// save as well.
func (t *terraformRun) printFailedPlan(ctx context.Context) {
	if info, err := os.Stat(t.run.files.plan); err == nil && info.Size() > 0 && ctx.Err() == nil {
		if plan, err := t.runner.ShowPlan(ctx, t.run.files.plan); err == nil {
			t.run.log.Mask(terraform.SensitiveValues(plan)...)
		}
	}
	t.runner.PrintPlan()
}

// warnOfUnmatched says which targets and replacements meet nothing: such a plan
// may do nothing and look as if all were well.
func (t *terraformRun) warnOfUnmatched() {
	for _, address := range terraform.Unmatched(t.plan, t.run.snapshot.Targets) {
		t.run.log.System("Warning: nothing is at the target %s.", address)
	}
	for _, address := range terraform.Unmatched(t.plan, t.run.snapshot.Replace) {
		t.run.log.System("Warning: nothing is at %s, which is to be replaced.", address)
	}
}
