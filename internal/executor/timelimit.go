package executor

import (
	"fmt"
	"time"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

// timeLimit is how long a run may take, and who says so.
type timeLimit struct {
	after time.Duration // 0: for ever
	by    string
}

// limitOf is the agent's limit for the operation, or the snapshot's where that is
// shorter. A snapshot that cannot be read has none: the run ends for it anyway.
func limitOf(j job.Job) timeLimit {
	operation := j.Assignment.Operation
	limit := timeLimit{j.Settings.TimeLimit(operation), "run.timeout in the agent's configuration"}
	if _, ok := j.Settings.Timeouts[operation]; ok {
		limit.by = fmt.Sprintf("run.timeouts.%s in the agent's configuration", operation)
	}
	snapshot, err := provision.ParseSnapshot(j.Assignment.Snapshot)
	if err != nil || snapshot.TimeoutSeconds == 0 {
		return limit
	}
	if wanted := time.Duration(snapshot.TimeoutSeconds) * time.Second; limit.after == 0 || wanted < limit.after {
		return timeLimit{wanted, "timeout_seconds in the snapshot"}
	}
	return limit
}

func (l timeLimit) reached() error { return fmt.Errorf("%s, by %s", l.after, l.by) }
