package executor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// pushPatience is how long a run tries to store a state before it ends and
// leaves that to the next one: a backend that is restarted is back by then, and
// a person still watches.
const pushPatience = time.Minute

// patience is what a run has with a backend that does not take its state.
type patience struct {
	time  time.Duration
	tries int // 0: as many as there is time for
}

// The pause between two tries begins with firstPause and doubles.
const firstPause = time.Second

// saveState deals with what a failed apply has left, and returns what the run
// failed with.
func (r *provisionRun) saveState(ctx context.Context, p provisioner, room ballast, failed error) error {
	left, err := p.KeepState(room)
	room.release()
	r.files.applying = err != nil // what is left lies in the work directory, if it is anywhere
	if !left {
		return failed
	}
	if err != nil {
		r.session.keeps(true)
		return provision.Fail(provision.CodeStateUnsaved, fmt.Sprintf(
			"The state of this run could neither be stored nor kept: %s. The next run in this workspace looks for it once more; if it finds none, what this run created must be imported or removed by hand. The run itself: %s",
			reason(err), provision.AsFailure(failed).Message), errors.Join(err, failed))
	}
	r.log.System("The engine could not store its state. Nothing else happens in this workspace before that is settled.")
	// At once: should this process be killed, the database still learns of it.
	r.session.keeps(true)
	if err := r.storeKept(ctx, p); err != nil {
		failure := provision.AsFailure(err)
		return provision.Fail(failure.Code, failure.Message+" The run itself: "+provision.AsFailure(failed).Message, errors.Join(err, failed))
	}
	r.session.keeps(false)
	failure := provision.AsFailure(failed)
	return provision.Fail(failure.Code, sentence(failure.Message)+" The state was stored after all: what was done is in it. Deploy again to finish.", failed)
}

// undecided fails, with CodeStateUnsaved, where something is kept that is no
// whole state: no program can tell what is missing.
func (r *provisionRun) undecided() error {
	paths, err := r.files.kept.list()
	if err != nil {
		return err
	}
	for _, path := range paths {
		if _, err := readHeader(path); err != nil {
			return provision.Fail(provision.CodeStateUnsaved, fmt.Sprintf(
				"A state of this workspace could not be stored, and what is kept of it in %s on this agent is no whole state: it is cut short, or only a note that it is lost. What was created may be recorded nowhere else, so a person must decide. Compare what is stored (%s state pull) with what exists, and import what is missing; then remove the file, which ends the hold here, and deploy again; to let other agents run the workspace before, release it, too (trellis release).",
				path, r.kind()), err)
		}
	}
	return nil
}

// storeKept stores the states that are kept. The caller reports it. It fails
// with CodeStateUnsaved.
func (r *provisionRun) storeKept(ctx context.Context, p provisioner) error {
	if err := r.undecided(); err != nil {
		return err
	}
	paths, err := r.files.kept.list()
	if err != nil {
		return err
	}
	for path, contained := range newestOf(paths) {
		r.log.System("Storing the state that is kept in %s.", path)
		if again, err := r.store(ctx, p, path); err != nil {
			advice := "Until it is, only this agent runs this workspace. Mend what is wrong and deploy again; or push it by hand (" + r.kind() + " state push) and remove the file, which ends the hold"
			if !again {
				advice = "Until a person has decided, only this agent runs this workspace. Removing the file ends the hold; then deploy again"
			}
			return provision.Fail(provision.CodeStateUnsaved, fmt.Sprintf(
				"The state that is kept in %s could not be stored: %s %s; or, to give it up, remove the file and release the workspace (trellis release).",
				path, sentence(provision.AsFailure(err).Message), advice), err)
		}
		// The file goes first, the database hears of it then: the other way
		// round, an agent that runs the workspace next could be overtaken by
		// this state.
		if err := r.files.kept.remove(append(contained, path)...); err != nil {
			return provision.Fail(provision.CodeStateUnsaved, fmt.Sprintf(
				"The state that was kept in %s is stored, but the file cannot be removed: %s. Remove it, then deploy again.", path, reason(err)), err)
		}
		r.log.System("The state is stored, and the file is removed.")
	}
	r.files.kept.settled()
	r.session.unsaved = false
	return nil
}

// store tries to store one state until it works, until there is no use in it,
// or until there is no patience left. A run that is being stopped tries once,
// within its grace. again is whether a later run may succeed.
func (r *provisionRun) store(ctx context.Context, p provisioner, path string) (again bool, err error) {
	patience := r.session.patience
	limited, cancel := context.WithTimeoutCause(r.session.grace, patience.time, fmt.Errorf("the backend did not answer within %s", patience.time))
	defer cancel()
	pause := firstPause
	var said error
	for try := 1; ; try++ {
		again, err := p.StoreState(limited, path)
		if err == nil {
			return false, nil
		}
		if said == nil || limited.Err() == nil {
			said = err // what the engine said tells more than that it was too late
		}
		r.log.System("Try %d: %s", try, oneLine(provision.AsFailure(err).Message))
		if !again {
			return false, err
		}
		if try == patience.tries {
			return true, said
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return true, said
		case <-limited.Done():
			timer.Stop()
			return true, said
		}
		pause *= 2
	}
}

// maxOneLine is how much of an error a line of the log about a try has, in bytes.
const maxOneLine = 300

func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxOneLine {
		text = strings.ToValidUTF8(text[:maxOneLine], "") + " …"
	}
	return text
}
