package agent

import (
	"errors"
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
		o.log.Error("cannot "+o.what+": nothing is claimed until that is fixed; what runs goes on", "error", err)
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

// inTheWay says in a clause why the database did not answer as hoped. Everybody
// who reaches the health port reads it, so it has nothing of the error's text.
func inTheWay(err error) string {
	code := ""
	if e, ok := errors.AsType[*queue.Error](err); ok {
		code = e.Code
	}
	switch queue.KindOf(err) {
	case queue.Unavailable:
		if plainCode(code) {
			return "the database answers, but cannot serve agents at the moment (" + code + "); the agent's log says more"
		}
		return "the database cannot be reached"
	case queue.Unauthorized:
		return "the database does not accept the cluster's token, or the queue's user"
	case queue.Superseded:
		return "another start of this agent has taken its place"
	default:
		return "the database refuses this agent; its log says why"
	}
}

// plainCode reports whether a code has the form of a SQLSTATE or of PostgREST's
// own: anything else could be text that somebody made.
func plainCode(code string) bool {
	if len(code) < 5 || len(code) > 8 {
		return false
	}
	for _, c := range code {
		if (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}
