package agent

import (
	"context"
	"errors"
	"log/slog"
	"path"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

// unsaved reports whether a state of the workspace that an engine could not
// store is on this agent: left by a run that was killed, or kept by one. What
// cannot be read may be one.
func (d *dataDir) unsaved(workspace string) (bool, error) {
	for _, name := range []string{job.SourceName, job.TempName, job.HomeName} {
		if found, err := holdsState(d.path("work", workspace, name)); found || err != nil {
			return true, err
		}
	}
	return holds(d.path("state", workspace), func(e isolation.Entry) bool {
		kept, err := path.Match(job.KeptStates, e.Path) // not below: it has no slash
		return kept && err == nil
	})
}

// clear removes what a run left in the workspace's directory and reports whether
// a state stays that could not be stored.
func (b *boot) clear(workspace uuid.UUID, log *slog.Logger) (unsaved bool) {
	unsaved, err := b.dir.unsaved(workspace.String())
	if err := errors.Join(err, b.dir.clear(workspace.String())); err != nil {
		log.Error("files of the run, with variables, may be left in the data directory", "error", err)
	}
	b.dir.markUsed(workspace.String())
	if err := b.dir.shut(workspace); err != nil {
		log.Error("the run's directories could not be shut to others; its uid is not used again before the next start", "error", err)
	}
	if unsaved {
		log.Warn("a state that the engine could not store is kept; the next run in the workspace stores it before anything else",
			"state", b.dir.path("state", workspace.String()), "work", b.dir.path("work", workspace.String()))
	}
	return unsaved
}

// tellUnsaved tells the database, before it ends a run without a result, that
// this agent has a state of the workspace that is not stored: no other may run
// it then. A claim that nothing can come of any more has nothing to tell.
func (b *boot) tellUnsaved(ctx context.Context, s *spool, log *slog.Logger) {
	unsaved, err := b.dir.unsaved(s.about.Workspace.String())
	if err != nil {
		log.Error("cannot tell whether a state is kept that could not be stored", "error", err)
	}
	if !unsaved {
		return
	}
	err = persist(ctx, func(ctx context.Context) error {
		return patiently(b.queue.Report(ctx, s.claim, provision.Report{
			Status: provision.Processing, Detail: provision.Detail{StateUnsaved: &unsaved},
		}))
	})
	if err != nil {
		log.Warn("the database does not take it that a state is kept on this agent", "refused", err)
	}
}
