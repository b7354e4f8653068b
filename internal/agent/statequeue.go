package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/statechain"
)

// stateLimit is longer than it takes to store the largest state in parts, each a
// call that is given up after a quarter of a minute.
const stateLimit = (maxSealed/queue.BlobPart + 1) * 15 * time.Second

// stateQueue stores the states that a run's spool tells of, in the order of the
// spool: what stands behind one goes to the database when that is stored. It is
// for one delivery.
type stateQueue struct {
	to    *deliveries
	spool *claimFiles
	log   *slog.Logger
	// missing is a state that was told and is not there: another one has been
	// written over it, which is told of later, or it is lost.
	missing error
	// last is the newest that is stored, and rewound says that the database has
	// been restored from a backup since, and may have lost it.
	last    *provision.StateWrite
	rewound bool
}

// report is Report of delivery.Queue for a report about states, or for one that
// depends on them; false: it is for the database as it is.
func (q *stateQueue) report(report *provision.Report) (stored bool, err error) {
	if w := report.Detail.StateWrite; w != nil {
		return true, q.store(*w)
	}
	if report.Status.EndsRun() && q.rewound && q.last != nil && q.missing == nil {
		if err := q.store(*q.last); err != nil {
			return true, err
		}
		q.rewound = false
	}
	if report.Status.EndsRun() && q.missing != nil {
		report.Status = provision.Failed
		report.Detail.ErrorCode = provision.CodeStateUnsaved
		report.Detail.ErrorMessage = fmt.Sprintf("The last state that the run wrote is not on the agent's disk any more (%v), so it could not be stored in the database. Compare what exists with the state (trellis state list), and bring in what it lacks (trellis state import). What is left of it, sealed, is kept in %s on the agent.", q.missing, q.to.dir.path("rejected"))
	}
	return false, nil
}

// store stores a state. It may take longer than other reports, and is tried until
// it works: while it is not stored nothing else may happen in the workspace.
func (q *stateQueue) store(w provision.StateWrite) error {
	to, workspace := q.to, q.spool.about.Workspace
	sealed, err := q.spool.readSealed(w)
	if err != nil {
		q.missing, q.spool.statesLeft = err, true
		if !errors.Is(err, errOverwritten) {
			q.log.Error("a state that the run has written cannot be read", "version", w.Number, "error", err)
		}
		return nil
	}
	q.missing, q.spool.statesLeft = nil, false
	k, err := to.notes.read(workspace)
	if err != nil { // it is nothing that the database could say otherwise
		q.log.Error("what is known of the workspace cannot be read; its next state begins a chain", "error", err)
		k = known{Name: q.spool.about.Name}
	}
	meta := statechain.Meta{Format: statechain.Format, Serial: w.Serial, Lineage: w.Lineage, Name: q.spool.about.Name}
	older := w.Number <= k.Version && w.Digest != k.Digest // sent again; a later one of this run follows
	if w.Number > k.Version {
		if k.Claim != q.spool.claim && k.Digest != "" {
			k.Chain = k.Chain.With(k.Digest)
		}
		k.Format, k.Previous, k.Version, k.Digest, k.Claim = statechain.Format, k.Digest, w.Number, w.Digest, q.spool.claim
	}
	if meta.Chain = k.Chain; !older {
		meta.Previous = k.Previous
	}
	meta.Sign(to.keys.makers(), workspace, w.Number, w.Digest)
	about, err := json.Marshal(meta)
	if err != nil {
		return fmt.Errorf("describe a state: %w", err)
	}
	ctx, cancel := context.WithCancel(to.ctx)
	defer cancel()
	err = patiently(to.queue.PutBlob(ctx, q.spool.claim, queue.Blob{Kind: queue.BlobState, Number: w.Number, Digest: w.Digest, Meta: about}, sealed))
	switch kind := queue.KindOf(err); {
	case err == nil:
		q.last = &w
		if older {
			return nil
		}
		if err := to.notes.write(workspace, k); err != nil {
			q.log.Warn("the state is stored, but its version could not be noted", "error", err)
		}
		if text, err := json.Marshal(k); err == nil && to.noted != nil {
			to.noted(text)
		}
		return nil
	case kind == queue.ClaimLost:
		q.keep(sealed, err)
	case kind == queue.Refused, kind == queue.ContentRefused:
		// Too large, say. Other content may be left out; a state is held.
		q.log.Error("the database refuses a state; trying again until it takes it", "version", w.Number, "refused", err)
		return &queue.Error{Kind: queue.Unavailable, Message: err.Error(), Err: err}
	}
	return err
}

// keep keeps a state that the database does not want any more, for people: the
// workspace was released, and others may have used it.
func (q *stateQueue) keep(sealed []byte, why error) {
	path := q.to.dir.path("rejected", q.spool.claim.String()+".state.age")
	if err := durable.WriteFile(path, sealed); err != nil {
		q.spool.statesLeft = true
		q.log.Error("a state that the database refuses could not be kept", "error", err, "refused", why)
		return
	}
	q.log.Error("the database does not take a state of this run any more; it is kept, sealed to the cluster's key", "file", path, "refused", why)
}
