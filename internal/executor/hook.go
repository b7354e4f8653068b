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

// policyHook is the agent's policy hook, for one run.
type policyHook struct {
	*task
	secrets string // a directory
	id      *isolation.Identity
}

// judge has the agent's policy hook look at a plan, as JSON. Unless it consents,
// nothing is applied and nobody is asked to approve: it fails with
// CodePolicyRefused.
func (h policyHook) judge(ctx context.Context, plan []byte) error {
	policy := h.job.Settings.Policy
	if len(policy.Hook) == 0 {
		return nil
	}
	// Programs take configuration, and code, from where they are and from their
	// home; templates write to the run's.
	own, err := os.MkdirTemp(h.secrets, "hook-")
	if err != nil {
		return fmt.Errorf("make a directory for the policy hook: %w", err)
	}
	defer isolation.RemoveAll(own) //nolint:errcheck // goes with the run's secrets
	h.log.System("The plan is shown to the policy hook %s.", policy.Hook[0])
	stdout, stderr := &wholeLines{to: h.log.Stream(provision.Stdout)}, &wholeLines{to: h.log.Stream(provision.Stderr)}
	began := time.Now()
	err = policyhook.Hook{
		Command: policy.Hook, Timeout: policy.HookTimeout, Dir: own, Env: h.environment(own), Confine: h.id.Confine, Hide: h.log.MaskString,
		Stdout: stdout, Stderr: stderr,
	}.Judge(ctx, plan)
	stdout.end()
	stderr.end()
	if err == nil {
		h.log.System("The policy hook consents (%s).", time.Since(began).Round(time.Millisecond))
		return nil
	}
	refused, ok := errors.AsType[*policyhook.Refused](err)
	if !ok {
		return stopOr(ctx, err)
	}
	message := fmt.Sprintf("The policy hook %s %s. Nothing was applied.", policy.Hook[0], refused.Why)
	if refused.Said != "" {
		message += " It printed:\n" + refused.Said
	}
	return provision.Fail(provision.CodePolicyRefused, message, err)
}

// environment has no credentials: neither the cloud's nor the run's.
func (h policyHook) environment(own string) []string {
	return []string{
		"HOME=" + own, "TMPDIR=" + own,
		"TENDRIL_WORKSPACE=" + h.job.Assignment.Workspace,
		"TENDRIL_OPERATION=" + string(h.job.Assignment.Operation),
		"TENDRIL_PROVISION=" + h.job.Assignment.ProvisionID.String(),
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
