package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tendril-run/tendril/internal/policyhook"
	"github.com/tendril-run/tendril/internal/provision"
)

// judge has the agent's policy hook look at a plan, as JSON. Unless it consents,
// nothing is applied and nobody is asked to approve: it fails with
// CodePolicyRefused.
func (r *provisionRun) judge(ctx context.Context, plan []byte) error {
	policy := r.job.Settings.Policy
	if len(policy.Hook) == 0 {
		return nil
	}
	r.log.System("The plan is shown to the policy hook %s.", policy.Hook[0])
	stdout, stderr := &endsLine{to: r.log.Stream(provision.Stdout)}, &endsLine{to: r.log.Stream(provision.Stderr)}
	began := time.Now()
	err := policyhook.Hook{
		Command: policy.Hook, Timeout: policy.HookTimeout, Dir: r.files.temp, Env: r.hookEnvironment(), Confine: r.id.Confine,
		Stdout: stdout, Stderr: stderr,
	}.Judge(ctx, plan)
	stdout.end()
	stderr.end()
	if err == nil {
		r.log.System("The policy hook consents (%s).", time.Since(began).Round(time.Millisecond))
		return nil
	}
	refused, ok := errors.AsType[*policyhook.Refused](err)
	if !ok {
		return r.stopOr(ctx, err)
	}
	message := fmt.Sprintf("The policy hook %s %s. Nothing was applied.", policy.Hook[0], refused.Why)
	if refused.Said != "" {
		message += " It printed:\n" + refused.Said
	}
	return provision.Fail(provision.CodePolicyRefused, message, err)
}

// hookEnvironment has no credentials: neither the cloud's nor the run's.
func (r *provisionRun) hookEnvironment() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + r.files.home, "TMPDIR=" + r.files.temp,
		"TENDRIL_WORKSPACE=" + r.job.Assignment.Workspace,
		"TENDRIL_OPERATION=" + string(r.job.Assignment.Operation),
		"TENDRIL_PROVISION=" + r.job.Assignment.ProvisionID.String(),
	}
}

// endsLine ends the last line of what is written, so that what comes next in the
// log is not part of it.
type endsLine struct {
	to   io.Writer
	open bool
}

func (e *endsLine) Write(p []byte) (int, error) {
	if len(p) > 0 {
		e.open = p[len(p)-1] != '\n'
	}
	return e.to.Write(p)
}

func (e *endsLine) end() {
	if e.open {
		_, _ = e.to.Write([]byte("\n")) // the log keeps its own errors
	}
}
