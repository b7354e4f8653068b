package executor

import (
	"context"
	"fmt"

	"github.com/tendril-run/tendril/internal/provision"
)

// unlock releases the lock that somebody holds on the state.
func (r *provisionRun) unlock(_ context.Context, _ provisioner) error { return r.notYet() }

// stateCommand reads or changes the state itself.
func (r *provisionRun) stateCommand(_ context.Context, _ provisioner) error { return r.notYet() }

func (r *provisionRun) notYet() error {
	return provision.Fail(provision.CodeOperationRefused, fmt.Sprintf("this agent does not carry out the operation %q", r.operation()), nil)
}
