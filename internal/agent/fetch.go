package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/statechain"
	"github.com/tendril-run/tendril/internal/trust"
)

// inputs gets what a run needs of the database before it has a child. What an agent or a
// person can sign counts only with that signature, whatever the database says.
type inputs struct {
	queue  blobReader
	keys   *keys
	states *managedStates
	// requesters reads to whom may be sealed and whose orders count; nil: nobody.
	requesters func() (*trust.Keyring, error)
}

// from reads by another reader.
func (i *inputs) from(blobs blobReader) *inputs {
	states := *i.states
	states.queue = blobs
	return &inputs{queue: blobs, keys: i.keys, states: &states, requesters: i.requesters}
}

// fetched is what a run needs of the database before it has a child.
type fetched struct {
	trusted  trusted
	approved []byte // the plan that was approved
	given    []byte // what a state operation takes
	managed  *job.ManagedState
	key      string   // the cluster's
	stateIn  *os.File // the managed state, or empty
}

// fetch gets all of it. A database that is away is waited for until ctx ends.
func (i *inputs) fetch(ctx context.Context, a provision.Assignment) (f fetched, err error) {
	if f.approved, err = i.approvedPlan(ctx, a); err != nil {
		return f, err
	}
	if f.trusted, err = i.trusted(a); err != nil {
		return f, err
	}
	if f.given, err = i.given(ctx, a, f.trusted); err != nil {
		return f, err
	}
	f.managed, f.key, f.stateIn, err = i.states.handDown(ctx, a, f.trusted)
	return f, err
}

// errPlanGone ends the attempts to fetch a plan.
var errPlanGone error = &queue.Error{Kind: queue.Refused, Message: "no plan is stored"}

// approvedPlan fetches the plan that was approved and makes sure that it is
// genuine and the one for this provision; nil where none was approved.
func (i *inputs) approvedPlan(ctx context.Context, a provision.Assignment) ([]byte, error) {
	if a.ApprovedPlan == "" {
		return nil, nil
	}
	var blob queue.Blob
	var sealed []byte
	err := persist(ctx, func(ctx context.Context) (err error) {
		blob, sealed, err = i.queue.GetBlob(ctx, a.ClaimID, queue.BlobPlan, 0)
		if errors.Is(err, queue.ErrNoBlob) {
			return errPlanGone
		}
		return patiently(err)
	})
	switch {
	case errors.Is(err, errPlanGone):
		return nil, planbundle.Invalid("it is not in the database any more", err)
	case err != nil && ctx.Err() != nil:
		return nil, errStopped
	case err != nil:
		return nil, fmt.Errorf("fetch the approved plan: %w", err)
	}
	content, err := planbundle.Open(i.keys.held(), a.WorkspaceID, sealed, blob.Meta, a.ApprovedPlan)
	if err != nil {
		return nil, err
	}
	b, err := planbundle.Decode(content)
	if err != nil {
		return nil, planbundle.Invalid(err.Error(), err)
	}
	return content, b.Serves(a)
}

// trusted asks the agent's policy about who is named in the snapshot. It fails for
// a command that needs an order and has none that counts.
func (i *inputs) trusted(a provision.Assignment) (t trusted, err error) {
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
	if read := i.requesters; read != nil {
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

// given fetches what a state operation takes: what a person has brought, or an
// earlier version of the state; nil where it takes nothing.
func (i *inputs) given(ctx context.Context, a provision.Assignment, t trusted) ([]byte, error) {
	if a.Operation != provision.OperationState {
		return nil, nil
	}
	snapshot, err := provision.ParseSnapshot(a.Snapshot)
	if err != nil || snapshot.State == nil {
		return nil, err // of no command the child says what is wrong
	}
	switch command := snapshot.State; {
	case command.Upload != "":
		content, err := i.upload(ctx, a)
		if err == nil {
			err = t.brought(content)
		}
		return content, err
	case command.Version != 0:
		blob, _, state, err := i.states.fetch(ctx, a, command.Version)
		if err == nil && blob.Number == 0 {
			err = provision.Fail(provision.CodeStateFailed, fmt.Sprintf(
				"Version %d of the workspace's state is not kept: trellis state versions lists those that are.", command.Version), nil)
		}
		return state, err
	}
	return nil, nil
}

// upload fetches a file that a person has uploaded. It need not be genuine, because any
// operator may upload one.
func (i *inputs) upload(ctx context.Context, a provision.Assignment) ([]byte, error) {
	var sealed []byte
	err := persist(ctx, func(ctx context.Context) (err error) {
		_, sealed, err = i.queue.GetBlob(ctx, a.ClaimID, queue.BlobUpload, 0)
		if errors.Is(err, queue.ErrNoBlob) {
			return errUploadGone
		}
		return patiently(err)
	})
	switch {
	case errors.Is(err, errUploadGone):
		return nil, provision.Fail(provision.CodeStateFailed, "What was uploaded for this is not in the database any more: it is kept for a day. Upload it again.", err)
	case err != nil && ctx.Err() != nil:
		return nil, errStopped
	case err != nil:
		return nil, fmt.Errorf("fetch the upload: %w", err)
	}
	content, err := i.keys.held().Open(sealed, statechain.MaxState)
	if err != nil {
		return nil, provision.Fail(provision.CodeStateFailed, fmt.Sprintf(
			"What was uploaded cannot be opened (%v). It must be sealed to the cluster's key, whose fingerprint here is %s.", err, seal.Fingerprint(i.keys.held().Public())), err)
	}
	return content, nil
}

// errUploadGone ends the attempts to fetch an upload.
var errUploadGone error = &queue.Error{Kind: queue.Refused, Message: "no such upload"}

// trusted is what the agent's policy says of who asked for a run.
type trusted struct {
	// recipient is to whom the run seals, "" for nobody; refused says why not, where
	// the snapshot names somebody.
	recipient, refused string
	// order is the signed one that the run carries out; nil: it needs none.
	order *trust.Order
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
			"The order is to replace version %d of the state, and the newest is version %d. Nothing was changed. Review the state, and give the order again.", t.order.Over, newest.Number), nil)
	}
	return nil
}
