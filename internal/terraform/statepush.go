package terraform

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/terraform-exec/tfexec"

	"github.com/tendril-run/tendril/internal/provision"
)

// ErrStateConflict is in the chain of an error that says: the backend holds a
// state which the pushed one does not follow from. Trying again does not help.
var ErrStateConflict = errors.New("the backend holds another state")

// PushOptions belong to PushState.
type PushOptions struct {
	// KillAfter is how long after the interrupt the engine is killed; 0 means
	// never. A push does not heed the interrupt: one that hangs on its backend
	// ends by this alone, and may leave the state's lock behind.
	KillAfter time.Duration
}

// PushState stores the state in file where Init has said, under the state's
// lock, and never by force: a state of another lineage, a newer one, or another
// one with the same serial stays, and the error has ErrStateConflict in its
// chain. Pushing again what is stored already succeeds, though the engine
// refuses that: it stores a state under the next serial, and in an empty backend
// under another lineage. Nothing is printed; all that the engine says is in the
// error. Fails with CodeStateUnsaved or CodeStateLocked.
func (r *Runner) PushState(ctx context.Context, file string, opts PushOptions) error {
	run := r.command("state push", provision.CodeStateUnsaved)
	run.use = WritesState
	run.out = newOutput(nil, nil)
	run.killAfter = opts.KillAfter
	err := run.do(ctx, nil, func(ctx context.Context, tf *tfexec.Terraform) error {
		return tf.StatePush(ctx, file, tfexec.Lock(true)) // terraform-exec's default is false
	})
	failure, ok := errors.AsType[*provision.Failure](err)
	if !ok || !conflicts(failure.Message) {
		return err
	}
	stored, unknown := r.stores(ctx, file, opts)
	switch {
	case unknown != nil:
		// Whether it is a conflict is not known, so another try may help.
		return provision.Fail(failure.Code, fmt.Sprintf("%s. Whether that is the same state could not be found out: %s",
			strings.TrimRight(failure.Message, ".\n"), unknown), errors.Join(failure.Err, unknown))
	case stored:
		return nil
	}
	failure.Err = errors.Join(ErrStateConflict, failure.Err)
	return failure
}

// conflicts reports whether the engine refused a push because of what the
// backend holds. It has no code for that; these words are the same in every
// version from 0.12 on and in OpenTofu.
func conflicts(message string) bool {
	return strings.Contains(message, "cannot import state with") || strings.Contains(message, "cannot overwrite existing state")
}
