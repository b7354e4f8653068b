package executor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/retry"
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

// keptStore stores the states that are kept on this agent.
type keptStore struct {
	*task
	kept keptStates
	kind string // of the engine
}

// undecided fails, with CodeStateUnsaved, where something is kept that is no
// whole state: no program can tell what is missing.
func (k keptStore) undecided() error {
	paths, err := k.kept.list()
	if err != nil {
		return err
	}
	for _, path := range paths {
		if _, err := readHeader(path); err != nil {
			return provision.Fail(provision.CodeStateUnsaved, fmt.Sprintf(
				"A state of this workspace could not be stored, and what is kept of it in %s on this agent is no whole state: it is cut short, or only a note that it is lost. What was created may be recorded nowhere else, so a person must decide. Compare what is stored (%s state pull) with what exists, and import what is missing; then remove the file, which ends the hold here, and deploy again; to let other agents run the workspace before, release it, too (trellis release).",
				path, k.kind), err)
		}
	}
	return nil
}

// storeAll stores the states that are kept. The caller reports it. It fails
// with CodeStateUnsaved.
func (k keptStore) storeAll(ctx context.Context, p stateKeeper) error {
	if err := k.undecided(); err != nil {
		return err
	}
	paths, err := k.kept.list()
	if err != nil {
		return err
	}
	for path, contained := range newestOf(paths) {
		k.log.System("Storing the state that is kept in %s.", path)
		if again, err := k.store(ctx, p, path); err != nil {
			advice := "Until it is, only this agent runs this workspace. Fix the cause and deploy again; or push it by hand (" + k.kind + " state push) and remove the file, which ends the hold"
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
		if err := k.kept.remove(append(contained, path)...); err != nil {
			return provision.Fail(provision.CodeStateUnsaved, fmt.Sprintf(
				"The state that was kept in %s is stored, but the file cannot be removed: %s. Remove it, then deploy again.", path, reason(err)), err)
		}
		k.log.System("The state is stored, and the file is removed.")
	}
	k.kept.settled()
	k.session.unsaved = false
	return nil
}

// store tries to store one state until it works, until there is no use in it,
// or until there is no patience left. A run that is being stopped tries once,
// within its grace. again is whether a later run may succeed.
func (k keptStore) store(ctx context.Context, p stateKeeper, path string) (again bool, err error) {
	patience := k.session.patience
	limited, cancel := context.WithTimeoutCause(k.session.grace, patience.time, fmt.Errorf("the backend did not answer within %s", patience.time))
	defer cancel()
	waiting, stop := context.WithCancel(limited) // which a run that is stopped cuts short
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	pause := retry.Between(firstPause, pushPatience)
	var said error
	for try := 1; ; try++ {
		again, err := p.StoreState(limited, path)
		if err == nil {
			return false, nil
		}
		if said == nil || limited.Err() == nil {
			said = err // what the engine said tells more than that it was too late
		}
		k.log.System("Try %d: %s", try, oneLine(provision.AsFailure(err).Message))
		if !again {
			return false, err
		}
		if try == patience.tries {
			return true, said
		}
		if !retry.Sleep(waiting, pause.NextBackOff()) {
			return true, said
		}
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
