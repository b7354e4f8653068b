package agent

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// Launcher has runs carried out elsewhere, each by a runner: a process that carries out one claim
// (Agent.CarryOut) and outlives the agent.
//
//	Start ─▶ Hello: the public halves of the keys that the runner has made ─▶ the claim is delegated
//	      ─▶ Hand: what the runner needs, sealed to it ─▶ Ended ─▶ Remove
type Launcher interface {
	// Start has a runner started for a claim. It fails with a *provision.Failure where that is for
	// people to know, and trying again is of no use.
	Start(ctx context.Context, run RemoteRun) (Remote, error)
	// Started lists what earlier starts of the agent have left.
	Started(ctx context.Context) ([]Remote, error)
}

// RemoteRun is a run that is carried out elsewhere.
type RemoteRun struct {
	Claim, Provision, Workspace uuid.UUID
	Number                      int64
	Name                        string // the workspace's
	Operation                   provision.Operation
	// Limit is how long the run may take; 0: any time.
	Limit time.Duration
	// Traceparent is the trace that the run belongs to.
	Traceparent string
	// From is the key that signs the run's order, in hexadecimal; "" for a run of an earlier start.
	From string
}

// Remote is a runner, seen from the agent. Its methods wait, are ended by their context, and know
// what happened to a runner that another start of the agent has had made.
type Remote interface {
	Run() RemoteRun
	// Hello waits for the runner's first line, which comes from itself and by no way that the
	// database has a part in. It fails with a *provision.Failure if there will be none. Meanwhile
	// it tells what the runner waits for, each time that this is something else.
	Hello(ctx context.Context, waits func(what string)) (string, error)
	// Hand gives the runner its order, once.
	Hand(ctx context.Context, order []byte) error
	// Ended waits until no process of the run is left, or nobody will know.
	Ended(ctx context.Context) (RemoteEnd, error)
	// Remove removes all that was made for the run. It may still be at work.
	Remove(ctx context.Context) error
}

// NotesPrefix begins a runner's last line, and RemoteEnd.Notes follow.
const NotesPrefix = "tendril-notes: "

// RemoteEnd is how a runner has ended.
type RemoteEnd struct {
	// Well: the runner says that the database has all of the run.
	Well bool
	// Why says in a sentence how else it ended.
	Why string
	// Unknown: its processes may be at work still, where nobody sees them.
	Unknown bool
	// Notes is what the runner knows of the workspace; "" where it did not say.
	Notes string
}
