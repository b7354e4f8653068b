package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/trust"
)

// trusted is what the agent's policy says of who asked for a run.
type trusted struct {
	// recipient is to whom the run seals, "" for nobody; refused says why not, where
	// the snapshot names somebody.
	recipient, refused string
	// order is the signed one that the run carries out; nil: it needs none.
	order *trust.Order
}

// trusted asks the agent's policy about who is named in the snapshot. It fails for
// a command that needs an order and has none that counts.
func (r *run) trusted() (t trusted, err error) {
	a := r.assignment
	snapshot, err := provision.ParseSnapshot(a.Snapshot)
	if err != nil {
		return t, nil //nolint:nilerr // the child meets the same error and tells of it
	}
	replaces := a.Operation == provision.OperationState && snapshot.State != nil &&
		(snapshot.State.Command == "push" || snapshot.State.Command == "rollback")
	if snapshot.RequesterKey == "" && !replaces {
		return t, nil
	}
	var keys *trust.Keyring
	if read := r.boot.options.Requesters; read != nil {
		if keys, err = read(); err != nil {
			return t, provision.Fail(provision.CodeOperationRefused, fmt.Sprintf("The agent's configuration: %v. Nothing was run.", err), err)
		}
	}
	now := time.Now()
	if snapshot.RequesterKey != "" {
		if t.recipient, err = keys.Recipient(snapshot.RequesterKey, a.Workspace, a.WorkspaceID, now); err != nil {
			t.recipient, t.refused = "", err.Error()
		}
	}
	if !replaces {
		return t, nil
	}
	command := snapshot.State
	refused := func(why error) (trusted, error) {
		return t, provision.Fail(provision.CodeOperationRefused, fmt.Sprintf("This agent carries out a state %s only by a signed order of a person whom its configuration names: %v. Nothing was changed.", command.Command, why), why)
	}
	if command.Order == "" {
		return refused(errors.New("it has no order (config_snapshot.state.order), which trellis state push and rollback sign"))
	}
	order, err := keys.Signer(command.Order, a.Workspace, a.WorkspaceID, now)
	switch {
	case err != nil:
		return refused(err)
	case order.Command != command.Command || order.Version != command.Version:
		return refused(fmt.Errorf("the order is for %s, version %d", order.Command, order.Version))
	}
	t.order = &order
	return t, nil
}

// brought checks that what was uploaded is what the order is about.
func (t trusted) brought(content []byte) error {
	if digest := planbundle.Digest(content); t.order == nil || digest != t.order.Digest {
		return provision.Fail(provision.CodeOperationRefused, fmt.Sprintf(
			"What was uploaded (SHA-256 %s) is not the state that was signed: it was changed since. Nothing was changed; push it again.", digest), nil)
	}
	return nil
}

// replaces checks that the newest state is the one that the order is to replace. So
// an order is carried out once.
func (t trusted) replaces(newest queue.Blob) error {
	if t.order != nil && t.order.Over != newest.Number {
		return provision.Fail(provision.CodeOperationRefused, fmt.Sprintf(
			"The order is to replace version %d of the state, and the newest is version %d. Nothing was changed. Look at the state, and give the order again.", t.order.Over, newest.Number), nil)
	}
	return nil
}

// given fetches what a state operation takes: what a person has brought, or an
// earlier version of the state; nil where it takes nothing.
func (r *run) given(ctx context.Context, t trusted) ([]byte, error) {
	a := r.assignment
	if a.Operation != provision.OperationState {
		return nil, nil
	}
	snapshot, err := provision.ParseSnapshot(a.Snapshot)
	if err != nil || snapshot.State == nil {
		return nil, err // of no command the child says what is wrong
	}
	switch command := snapshot.State; {
	case command.Upload != "":
		content, err := r.upload(ctx)
		if err == nil {
			err = t.brought(content)
		}
		return content, err
	case command.Version != 0:
		blob, _, state, err := r.boot.fetchState(ctx, a, command.Version)
		if err == nil && blob.Number == 0 {
			err = provision.Fail(provision.CodeStateFailed, fmt.Sprintf(
				"Version %d of the workspace's state is not kept: trellis state versions lists those that are.", command.Version), nil)
		}
		return state, err
	}
	return nil, nil
}
