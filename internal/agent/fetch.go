package agent

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// fetched is what a run needs of the database before it has a child.
type fetched struct {
	trusted  trusted
	approved []byte // the plan that was approved
	given    []byte // what a state operation takes
	managed  *job.ManagedState
	key      string   // the cluster's
	stateIn  *os.File // the managed state, or empty
}

// errStopped is met where a run was asked to stop before it had a child.
var errStopped = errors.New("asked to stop")

// fetch gets what a run needs. A database that is away is waited for until the
// run is asked to stop, or its time is over: nothing has been begun, and whoever
// deployed wants it done more than they want to hear of an outage.
func (r *run) fetch() (f fetched, err error) {
	ctx, cancel := context.WithCancel(r.boot.delivery)
	defer cancel()
	defer context.AfterFunc(r.asked, cancel)()
	if limit := r.timeLimit(); limit > 0 {
		defer time.AfterFunc(limit, func() { r.stop(job.StopTimedOut) }).Stop()
	}
	defer func() {
		// Nothing is wrong with what it did not get.
		if queue.KindOf(err) == queue.ClaimLost {
			r.stop(job.StopLost)
			err = errStopped
		}
	}()
	if f.approved, err = r.approvedPlan(ctx); err != nil {
		return f, err
	}
	if f.trusted, err = r.trusted(); err != nil {
		return f, err
	}
	if f.given, err = r.given(ctx, f.trusted); err != nil {
		return f, err
	}
	f.managed, f.key, f.stateIn, err = r.boot.managedState(ctx, r.assignment, f.trusted)
	return f, err
}

// timeLimit is how long the run may take, 0 for any time. Its child measures its
// own time; see limitOf in package executor.
func (r *run) timeLimit() time.Duration {
	limit := r.boot.options.Settings.TimeLimit(r.assignment.Operation)
	snapshot, err := provision.ParseSnapshot(r.assignment.Snapshot)
	if err != nil || snapshot.TimeoutSeconds == 0 {
		return limit
	}
	if wanted := time.Duration(snapshot.TimeoutSeconds) * time.Second; limit == 0 || wanted < limit {
		return wanted
	}
	return limit
}

// neverFetched is what a run ends as that was stopped meanwhile.
func neverFetched(reason job.StopReason) provision.Report {
	report, _ := stopped("It waited for what it needs from the database, and was never started.", reason, false)
	return report
}
