package executor

import (
	"context"
	"errors"
	"fmt"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/terraform"
)

// Apply implements provisioner.
func (t *terraformRun) Apply(ctx context.Context, on func(provision.Event, int)) error {
	t.failed = true
	if err := t.run.files.kept.begin(t.base.State); err != nil {
		return fmt.Errorf("nothing was applied: note in %s from which state: %w", t.run.files.kept.dir, err)
	}
	applied, err := t.runner.Apply(ctx, terraform.ApplyOptions{
		PlanFile: t.sealedPlan.path(), VarFile: t.ephemeral, Steps: t.steps,
		On: func(e terraform.Event) {
			t.run.log.Mask(e.Secrets...)
			if e.Resource != nil {
				on(*e.Resource, e.Percent())
			}
		},
	})
	t.dumped, t.dumpedBytes, applied.State = applied.State, applied.StateBytes, nil
	t.applied = applied
	if err := t.whatEngineSaid(err); err != nil {
		return t.howFar(ctx, applied, err)
	}
	t.failed = false
	t.note.put()
	return nil
}

// howFar adds to an interrupted apply's error what had been done by then.
func (t *terraformRun) howFar(ctx context.Context, applied terraform.Applied, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return provision.Fail(provision.CodeApplyFailed, fmt.Sprintf(
		"Apply was interrupted after %d of %d steps. What was done is in the state, unless the log says otherwise; deploy again to finish.", applied.Done, applied.Total), err)
}

// whatEngineSaid passes an engine's error on, but not that its output could not
// be written: the log says so itself, and the work is done.
func (t *terraformRun) whatEngineSaid(err error) error {
	if errors.Is(err, terraform.ErrOutput) {
		return nil
	}
	return err
}
