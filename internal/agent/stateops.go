package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/terraform"
)

// upload fetches what a person has brought, which need not be genuine: whoever
// may deploy may bring it.
func (r *run) upload(ctx context.Context) ([]byte, error) {
	var sealed []byte
	err := persist(ctx, func(ctx context.Context) (err error) {
		_, sealed, err = r.boot.queue.GetBlob(ctx, r.assignment.ClaimID, queue.BlobUpload, 0)
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
	content, err := r.boot.keys.held().Open(sealed, terraform.MaxStateFile)
	if err != nil {
		return nil, provision.Fail(provision.CodeStateFailed, fmt.Sprintf(
			"What was uploaded cannot be opened (%v). It must be sealed to the cluster's key, whose fingerprint here is %s.", err, seal.Fingerprint(r.boot.keys.held().Public())), err)
	}
	return content, nil
}

// errUploadGone ends the attempts to fetch an upload.
var errUploadGone error = &queue.Error{Kind: queue.Refused, Message: "no such upload"}

// leave stores what a run leaves for who asked for it, sealed by the run. An
// error that is none of the queue's says that it is not there.
func (p *plans) leave(claim uuid.UUID, digest string) error {
	path := p.spool.path(planSuffix)
	sealed, err := readUpTo(path, maxSealed)
	if err != nil {
		return err
	}
	if planbundle.Digest(sealed) != digest {
		return fmt.Errorf("%s is not what the run reported", path)
	}
	return p.put(claim, queue.Blob{Kind: queue.BlobResult, Digest: digest}, sealed)
}

// put stores something. Its errors are the queue's.
func (p *plans) put(claim uuid.UUID, blob queue.Blob, data []byte) error {
	ctx, cancel := context.WithTimeout(p.boot.delivery, storeLimit)
	defer cancel()
	err := p.boot.queue.PutBlob(ctx, claim, blob, data)
	if _, answered := errors.AsType[*queue.Error](err); err != nil && !answered { // the network's
		return &queue.Error{Kind: queue.Unavailable, Message: fmt.Sprintf("store the %s: %v", blob.Kind, err), Err: err}
	}
	return err
}

// notLeft is what a run ends as whose result is not there any more.
func (p *plans) notLeft(err error) provision.Report {
	p.log.Error("what a run has left for who asked for it cannot be stored", "error", err)
	return provision.Report{Status: provision.Failed, Detail: provision.Detail{
		ErrorCode:    provision.CodeStateFailed,
		ErrorMessage: "The state was read, but the agent could not store it for who asked for it. Nothing was changed; ask again. The agent's log has the details.",
	}}
}
