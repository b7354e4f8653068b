package executor

import (
	"fmt"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

func TestLimitOf(t *testing.T) {
	t.Parallel()
	plan := map[provision.Operation]time.Duration{provision.OperationPlan: time.Hour}
	for name, test := range map[string]struct {
		settings job.Settings
		snapshot string
		want     string
	}{
		"the agent's":                    {job.Settings{Timeout: 2 * time.Hour}, "", "2h0m0s, by run.timeout in the agent's configuration"},
		"of the operation":               {job.Settings{Timeout: 2 * time.Minute, Timeouts: plan}, "", "1h0m0s, by run.timeouts.plan in the agent's configuration"},
		"the snapshot's":                 {job.Settings{Timeout: 2 * time.Hour, Timeouts: plan}, `"timeout_seconds": 90,`, "1m30s, by timeout_seconds in the snapshot"},
		"no more than the agent's":       {job.Settings{Timeout: 2 * time.Minute}, `"timeout_seconds": 604800,`, "2m0s, by run.timeout in the agent's configuration"},
		"the snapshot's without another": {job.Settings{}, `"timeout_seconds": 90,`, "1m30s, by timeout_seconds in the snapshot"},
		"a snapshot that cannot be read": {job.Settings{Timeout: time.Minute}, `"timeout_seconds": -1,`, "1m0s, by run.timeout in the agent's configuration"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := job.Job{Settings: test.settings, Assignment: provision.Assignment{Operation: provision.OperationPlan, Snapshot: fmt.Appendf(nil,
				`{%s "template_source": {"repo": "https://x/y", "version": "v1"}, "workspace": "w"}`, test.snapshot)}}
			if got := limitOf(j).reached().Error(); got != test.want {
				t.Errorf("limitOf(%s).reached() = %s, want %s", test.snapshot, got, test.want)
			}
		})
	}
}
