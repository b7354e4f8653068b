package delivery

import (
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// Observer hears how a delivery gets on. Its methods soon return and may be
// called by several goroutines; none is called for each line.
type Observer interface {
	// Turns says that the Pump looks at the spool, or calls the queue, and waits
	// so long at most before it turns again.
	Turns(waits time.Duration)
	// Waits says since when the oldest line or update has waited that was read
	// from the spool and is not stored; zero: there is none.
	Waits(since time.Time)
	// Stored says that the database has stored chunks.
	Stored(chunks int)
	// SetAside says that the database has accepted something, "log" or "report",
	// without the content that it does not take.
	SetAside(kind string)
	// Reported says that the database has accepted an update, and when the child
	// wrote it; zero where it does not say.
	Reported(report provision.Report, at time.Time)
	// Heard is Reported for an update that an earlier delivery has sent, or may have.
	Heard(report provision.Report, at time.Time)
}

// unobserved is for a delivery that nobody watches.
type unobserved struct{}

func (unobserved) Turns(time.Duration)                  {}
func (unobserved) Waits(time.Time)                      {}
func (unobserved) Stored(int)                           {}
func (unobserved) SetAside(string)                      {}
func (unobserved) Reported(provision.Report, time.Time) {}
func (unobserved) Heard(provision.Report, time.Time)    {}
