package agent

import (
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// Observer hears what happens, for who counts it. Its methods soon return and
// may be called by several goroutines.
type Observer interface {
	// Claimed: a provision was claimed that had waited so long in the queue;
	// negative where the database does not say.
	Claimed(operation provision.Operation, waited time.Duration)
	// StageTook: a run has left a stage. trace is the id of its trace, "" for none.
	StageTook(stage provision.Stage, took time.Duration, trace string)
	// RunEnded: a run is over, and the database knows. The operation is "" where
	// an earlier version of the agent began it.
	RunEnded(operation provision.Operation, status provision.Status, code provision.Code)
	// ChunksStored: the database has stored chunks of logs.
	ChunksStored(chunks int)
	// SetAside: the database did not take a chunk of a log or a part of a report,
	// "log" or "report", and has been told so instead.
	SetAside(kind string)
	// LeasesRenewed: a heartbeat was answered, or not, for so many claims.
	LeasesRenewed(kept, lost, failed int)
	// Swept: so many provisions of earlier boots were ended without a result.
	Swept(provisions int)
	// Beat: the database has answered a heartbeat.
	Beat(at time.Time)
}

// unobserved is for an agent that nobody watches.
type unobserved struct{}

func (unobserved) Claimed(provision.Operation, time.Duration)                     {}
func (unobserved) StageTook(provision.Stage, time.Duration, string)               {}
func (unobserved) RunEnded(provision.Operation, provision.Status, provision.Code) {}
func (unobserved) ChunksStored(int)                                               {}
func (unobserved) SetAside(string)                                                {}
func (unobserved) LeasesRenewed(_, _, _ int)                                      {}
func (unobserved) Swept(int)                                                      {}
func (unobserved) Beat(time.Time)                                                 {}
