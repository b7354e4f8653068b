package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/seal"
)

// storeLimit bounds one try to store a plan, of 8 MiB at most, over a slow link.
const storeLimit = 20 * time.Minute

// plans stores the plan of one run's spool before the database hears that it
// awaits approval: by who delivers the report, while its child lives or after
// any number of crashes.
type plans struct {
	boot   *boot
	spool  *spool
	log    *slog.Logger
	stored string // the digest of what is
}

// keep stores the plan of that digest. An error that is none of the queue's says
// that there is no such plan.
func (p *plans) keep(claim uuid.UUID, digest string) error {
	if p.stored == digest {
		return nil
	}
	content, err := p.read(digest)
	if err != nil {
		return err
	}
	sealed, proof, err := planbundle.Seal(p.boot.makers(), content)
	if err != nil {
		return err
	}
	if err := p.put(claim, queue.Blob{Kind: queue.BlobPlan, Digest: digest, Meta: proof}, sealed); err != nil {
		return err
	}
	p.stored = digest
	p.log.Info("stored the plan that awaits approval", "digest", digest, "bytes", len(sealed))
	return nil
}

// read reads what the child has left.
func (p *plans) read(digest string) ([]byte, error) {
	path := p.spool.path(planSuffix)
	content, err := readUpTo(path, planbundle.MaxContent+1)
	if err != nil {
		return nil, err
	}
	if planbundle.Digest(content) != digest {
		return nil, fmt.Errorf("%s is not the plan that the run reported", path)
	}
	b, err := planbundle.Decode(content)
	if err == nil && (b.Provision != p.spool.about.Provision || b.Workspace != p.spool.about.Workspace || b.Name != p.spool.about.Name) {
		err = fmt.Errorf("%s is another provision's plan", path)
	}
	return content, err
}

// lost is what a run ends as whose plan is not there any more.
func (p *plans) lost(err error) provision.Report {
	p.log.Error("the plan that awaits approval cannot be stored", "error", err)
	return provision.Report{Status: provision.Failed, Detail: provision.Detail{
		ErrorCode:    provision.CodePlanInvalid,
		ErrorMessage: "The plan was made, but the agent could not store it to be approved. Nothing was changed; deploy again. The agent's log has the details.",
	}}
}

// makers are the identities to which, and by which, what others are to read is
// made: while identities are rotated, the one that all agents have.
func (b *boot) makers() seal.Identities {
	identities, cluster := b.keys.held(), b.keys.clusterKey()
	for n := range identities {
		if one := identities[n : n+1]; one.Public() == cluster {
			return slices.Clip(one)
		}
	}
	return identities
}

// approvedPlan fetches the plan that was approved and makes sure that it is
// genuine and the one for this provision; nil where none was approved.
func (r *run) approvedPlan(ctx context.Context) ([]byte, error) {
	a := r.assignment
	if a.ApprovedPlan == "" {
		return nil, nil
	}
	var blob queue.Blob
	var sealed []byte
	err := persist(ctx, func(ctx context.Context) (err error) {
		blob, sealed, err = r.boot.queue.GetBlob(ctx, a.ClaimID, queue.BlobPlan, 0)
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
	content, err := planbundle.Open(r.boot.keys.held(), sealed, blob.Meta, a.ApprovedPlan)
	if err != nil {
		return nil, err
	}
	b, err := planbundle.Decode(content)
	if err != nil {
		return nil, planbundle.Invalid(err.Error(), err)
	}
	return content, b.Serves(a)
}

// errPlanGone ends the attempts to fetch a plan.
var errPlanGone error = &queue.Error{Kind: queue.Refused, Message: "no plan is stored"}
