package agent

import (
	"log/slog"
	"time"

	"github.com/tendril-run/tendril/internal/queue"
)

// outage tells the log of a trouble once when it begins and once when it is
// over, however often it is met in between. For one goroutine.
type outage struct {
	log *slog.Logger
	// what cannot be done while it lasts.
	what string
	// patience is how long it must last before it is told of.
	patience time.Duration

	since time.Time
	kind  queue.Kind
	told  bool
}

// met notes that what failed.
func (o *outage) met(err error) {
	kind := queue.KindOf(err)
	if o.since.IsZero() {
		o.since = time.Now()
	}
	if kind != o.kind {
		o.kind, o.told = kind, false // another trouble is news
	}
	if o.told || time.Since(o.since) < o.patience {
		return
	}
	o.told = true
	switch kind {
	case queue.Unavailable:
		o.log.Warn("cannot "+o.what+"; trying again until it works", "error", err)
	case queue.Unauthorized:
		o.log.Error("cannot "+o.what+": nothing is claimed until that is mended; what runs goes on", "error", err)
	default:
		o.log.Error("cannot "+o.what, "error", err)
	}
}

// over notes that it works.
func (o *outage) over() {
	if o.told {
		o.log.Info("can "+o.what+" again", "after", time.Since(o.since).Round(time.Millisecond))
	}
	o.since, o.told, o.kind = time.Time{}, false, 0
}
