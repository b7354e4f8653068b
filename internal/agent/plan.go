package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// storeLimit bounds one try to store a plan, of 8 MiB at most, over a slow link.
const storeLimit = 20 * time.Minute

// plans stores the plan of one run's spool before the database hears that it
// awaits a person, or is applied and may be set down: by who delivers the report, while its child lives or after
// any number of crashes.
type plans struct {
	to     *deliveries
	spool  *claimFiles
	log    *slog.Logger
	stored string // the digest of what is
}

// keep stores the plan of that digest. An error that is none of the queue's says
// that there is no such plan.
func (p *plans) keep(claim uuid.UUID, digest string) error {
	if p.stored == digest || p.spool.about.Plan == digest {
		return nil
	}
	content, err := p.read(digest)
	if err != nil {
		return err
	}
	sealed, proof, err := planbundle.Seal(p.to.keys.makers(), content)
	if err != nil {
		return err
	}
	if err := p.put(claim, queue.Blob{Kind: queue.BlobPlan, Digest: digest, Meta: proof}, sealed); err != nil {
		return err
	}
	p.stored = digest
	p.log.Info("stored the run's plan", "digest", digest, "bytes", len(sealed))
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
	p.log.Error("the plan that awaits a person cannot be stored", "error", err)
	return provision.Report{Status: provision.Failed, Detail: provision.Detail{
		ErrorCode:    provision.CodePlanInvalid,
		ErrorMessage: "The plan was made, but the agent could not store it for a person to see. Nothing was changed; deploy again. The agent's log has the details.",
	}}
}

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
	ctx, cancel := context.WithTimeout(p.to.ctx, storeLimit)
	defer cancel()
	err := p.to.queue.PutBlob(ctx, claim, blob, data)
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
