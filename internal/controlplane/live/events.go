package live

import (
	"context"
	"errors"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// eventPage is how many events are sent at once.
const eventPage = 200

// events sends what follows the cursor. Events are few beside lines, so each
// reader reads the table, as itself, when the feed has seen that there are more.
func (l *follow) events() error {
	for {
		allowed, err := l.allowed()
		if err != nil {
			return err
		}
		v := l.feed.after(0, nil, 0)
		var later <-chan time.Time
		switch {
		case !allowed:
			v.changed, later = nil, time.After(askAgain)
		case v.gone:
			return errors.Join(l.send(goneFrame), context.Canceled)
		case v.known && v.sight.LastEvent > l.After:
			sent, err := l.sendEvents()
			if err != nil {
				return err
			}
			if sent {
				continue
			}
			later = time.After(askAgain)
		case v.known && v.sight.Over():
			return l.send(endFrame(v.sight))
		}
		if !l.pause(v.changed, later) {
			return context.Canceled
		}
	}
}

func (l *follow) sendEvents() (sent bool, err error) {
	found, _, err := read(l, func() ([]store.Event, error) { return l.store.Events(l.ctx, l.Provision, l.After, eventPage) })
	if err != nil || len(found) == 0 {
		return false, err
	}
	frames := l.buffers[:0]
	for _, e := range found {
		frames = append(frames, event(e.ID, "event", e))
		l.After = e.ID
	}
	err = l.send(frames...)
	clear(frames)
	l.buffers = frames
	return true, err
}
