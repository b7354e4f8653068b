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

// The pause between two tries begins with firstPause and doubles.
const firstPause = time.Second

// saveState deals with what a failed apply has left, and returns what the run
// failed with.
func (r *provisionRun) saveState(ctx context.Context, p provisioner, room ballast, failed error) error {
	left, err := p.KeepState(room)
	room.release()
	if !left {
		return failed
	}
	if err != nil {
		// What is left lies in the work directory, if it is anywhere.
		r.files.leaveSource = true
		r.session.keeps(true)
		return provision.Fail(provision.CodeStateUnsaved, fmt.Sprintf(
			"The state of this run could neither be stored nor kept: %s. The next run in this workspace looks for it once more; if it finds none, what this run created must be imported or removed by hand. The run itself: %s",
			reason(err), provision.AsFailure(failed).Message), errors.Join(err, failed))
	}
	r.log.System("The engine could not store its state. It is kept on this agent, and nothing else happens in this workspace before it is stored.")
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

// storeKept stores the states that are kept. The caller reports it. It fails
// with CodeStateUnsaved.
func (r *provisionRun) storeKept(ctx context.Context, p provisioner) error {
	paths, err := r.files.kept.list()
	if err != nil {
		return err
	}
	for path, contained := range newestOf(paths) {
		r.log.System("Storing the state that is kept in %s.", path)
		if err := r.store(ctx, p, path); err != nil {
			return provision.Fail(provision.CodeStateUnsaved, fmt.Sprintf(
				"The state that is kept in %s could not be stored: %s Until it is, only this agent runs this workspace. Mend what is wrong and deploy again; or push it by hand (terraform state push) and remove the file; or, to give it up, remove the file and release the workspace (trellis release).",
				path, sentence(provision.AsFailure(err).Message)), err)
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
	r.session.unsaved = false
	return nil
}

// store tries to store one state until it works, until there is no use in it,
// or until the time for it is over. A run that is being stopped tries once,
// within its grace.
func (r *provisionRun) store(ctx context.Context, p provisioner, path string) error {
	patience := r.session.patience
	limited, cancel := context.WithTimeoutCause(r.session.grace, patience, fmt.Errorf("the backend did not answer within %s", patience))
	defer cancel()
	pause := firstPause
	var said error
	for try := 1; ; try++ {
		again, err := p.StoreState(limited, path)
		if err == nil {
			return nil
		}
		if said == nil || limited.Err() == nil {
			said = err // what the engine said tells more than that it was too late
		}
		r.log.System("Try %d: %s", try, oneLine(provision.AsFailure(err).Message))
		if !again {
			return said
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return said
		case <-limited.Done():
			timer.Stop()
			return said
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
