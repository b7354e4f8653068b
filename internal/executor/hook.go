package executor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tendril-run/tendril/internal/isolation"
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
	// Programs take configuration, and code, from where they are and from their
	// home; templates write to the run's.
	own, err := os.MkdirTemp(r.files.secrets, "hook-")
	if err != nil {
		return fmt.Errorf("make a directory for the policy hook: %w", err)
	}
	defer isolation.RemoveAll(own) //nolint:errcheck // goes with the run's secrets
	r.log.System("The plan is shown to the policy hook %s.", policy.Hook[0])
	stdout, stderr := &wholeLines{to: r.log.Stream(provision.Stdout)}, &wholeLines{to: r.log.Stream(provision.Stderr)}
	began := time.Now()
	err = policyhook.Hook{
		Command: policy.Hook, Timeout: policy.HookTimeout, Dir: own, Env: r.hookEnvironment(own), Confine: r.id.Confine, Hide: r.log.MaskString,
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
func (r *provisionRun) hookEnvironment(own string) []string {
	return []string{
		"HOME=" + own, "TMPDIR=" + own,
		"TENDRIL_WORKSPACE=" + r.job.Assignment.Workspace,
		"TENDRIL_OPERATION=" + string(r.job.Assignment.Operation),
		"TENDRIL_PROVISION=" + r.job.Assignment.ProvisionID.String(),
	}
}

// wholeLines passes lines on as they are complete, so that those of two streams
// do not run into each other.
type wholeLines struct {
	to   io.Writer
	rest []byte
}

// longestLine is how much of a line is held back, in bytes.
const longestLine = 64 << 10

func (w *wholeLines) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	end := bytes.LastIndexByte(w.rest, '\n') + 1
	if len(w.rest)-end > longestLine {
		end = len(w.rest)
	}
	if end == 0 {
		return len(p), nil
	}
	_, err := w.to.Write(w.rest[:end])
	w.rest = append(w.rest[:0], w.rest[end:]...)
	return len(p), err
}

// end passes on what has no end of line.
func (w *wholeLines) end() {
	if len(w.rest) > 0 {
		_, _ = w.to.Write(append(w.rest, '\n')) // the log keeps its own errors
	}
}
