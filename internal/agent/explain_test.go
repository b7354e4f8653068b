package agent

import (
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

func TestVerdict(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reason   job.StopReason
		applying bool
		status   provision.Status
		code     provision.Code
	}{
		{"", false, provision.Failed, provision.CodeExecDied},
		{"", true, provision.Failed, provision.CodeExecDied},
		{job.StopCancelled, false, provision.Cancelled, provision.CodeCancelled},
		// Nobody knows what an apply has done that was killed.
		{job.StopCancelled, true, provision.Failed, provision.CodeExecDied},
		{job.StopDrained, true, provision.Failed, provision.CodeAgentDrained},
		{job.StopLost, false, provision.Failed, provision.CodeAgentLost},
	} {
		report, line := verdict("was ended by signal 9 (killed)", "", c.reason, c.applying)
		if report.Status != c.status || report.Detail.ErrorCode != c.code {
			t.Errorf("verdict(%q, %v) = %s/%s, want %s/%s", c.reason, c.applying, report.Status, report.Detail.ErrorCode, c.status, c.code)
		}
		if begun := strings.Contains(line, "Apply had begun"); begun != c.applying || line != report.Detail.ErrorMessage {
			t.Errorf("verdict(%q, %v) says %q, want it to say whether apply had begun", c.reason, c.applying, line)
		}
	}
}
