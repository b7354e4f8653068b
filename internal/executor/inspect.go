package executor

import (
	"context"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/tfvars"
)

// variablesLimit is how much of a report the declared variables may take, in
// bytes.
const variablesLimit = 256 << 10

// inspect tells what the template declares. It needs no engine, and runs nothing.
func (r *provisionRun) inspect(ctx context.Context) error {
	templateDir, commit, err := r.checkout(ctx)
	if err != nil {
		return r.stopOr(ctx, err)
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
	r.log.System("The template declares %s.", counted(len(declared), "variable"))
	// With the commit, and acknowledged: what it means must be pinned by then.
	return r.stopOr(ctx, r.session.reportAndWait(ctx, provision.Detail{Commit: commit, Variables: tfvars.Fit(declared, variablesLimit)}))
}

// tellVariables tells what a version declares that nobody in the organisation
// has used yet: nothing else may have looked at it. A run does not fail for it.
func (r *provisionRun) tellVariables(template *tfvars.Template) {
	if r.job.Assignment.PinnedCommit != "" {
		return
	}
	declared, err := template.Declared()
	if err == nil {
		err = r.session.report(provision.Detail{Variables: tfvars.Fit(declared, variablesLimit)})
	}
	if err != nil {
		r.log.System("What the template declares could not be recorded: %v", err)
	}
}
