package live

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	// provisionChannel carries ids of provisions, workChannel of clusters where
	// something was queued.
	provisionChannel = "tendril_provision"
	workChannel      = "tendril_work"
)

const (
	// Reconnecting starts after reconnectMin and is put off up to reconnectMax.
	reconnectMin = 200 * time.Millisecond
	reconnectMax = 10 * time.Second
	// probeEvery is how often the hub sends itself a notification: that it comes
	// shows that the session lives, and that no pooler stands between which hands
	// it to somebody else. It has probePatience to come.
	probeEvery    = 30 * time.Second
	probePatience = 3 * time.Second
	// connectLimit bounds connecting, whatever a URL of several hosts allows each.
	connectLimit = 30 * time.Second
	// deafPoll is how often everything watched is looked at meanwhile.
	deafPoll = 2 * time.Second
	// hardOfHearing is how long to wait before listening again where a session
	// was to be had and yet nothing came: that is a pooler, and it will stay.
	hardOfHearing = 5 * time.Minute
)

// listen keeps one session that LISTENs, and polls while there is none.
func (h *Hub) listen(ctx context.Context) {
	wait := reconnectMin
	for ctx.Err() == nil {
		h.turn()
		switch begun, heard := h.session(ctx); {
		case heard:
			wait = reconnectMin
		case begun:
			wait = hardOfHearing
		}
		h.deaf.Store(true)
		h.pollUntil(ctx, time.Now().Add(wait/2+rand.N(wait))) //nolint:gosec // jitter, not a secret
		wait = min(wait*2, reconnectMax)
	}
}

// pollUntil has everything looked at each deafPoll until then.
func (h *Hub) pollUntil(ctx context.Context, then time.Time) {
	for ctx.Err() == nil {
		left := time.Until(then)
		if left <= 0 {
			return
		}
		h.turn()
		timer := time.NewTimer(min(left, deafPoll))
		select {
		case <-ctx.Done():
		case <-timer.C:
			h.missed()
		}
		timer.Stop()
	}
}

// session listens until the connection breaks. It reports whether it had begun,
// and whether anything was heard. Its errors are not told: requests meet the
// same ones.
func (h *Hub) session(ctx context.Context) (begun, heard bool) {
	connecting, cancel := context.WithTimeout(ctx, connectLimit)
	conn, err := h.database.Session(connecting, "trellis live")
	cancel()
	if err != nil {
		return false, false
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 100*time.Millisecond)
		defer cancel()
		_ = conn.Close(closing) // it may be broken already
	}()
	asking, cancel := context.WithTimeout(ctx, probePatience)
	_, err = conn.Exec(asking, "LISTEN "+provisionChannel+"; LISTEN "+workChannel)
	cancel()
	if err != nil {
		return false, false
	}
	for {
		h.turn()
		// Sent over another connection, so that it has to find its way here.
		probe := uuid.NewString()
		if err := h.database.Notify(ctx, provisionChannel, probe); err != nil {
			return heard, heard
		}
		if !h.hear(ctx, conn, probePatience, probe) {
			return true, heard
		}
		if !heard || h.deaf.Load() {
			if !heard {
				h.sessions.Add(1)
			}
			heard = true
			h.missed() // while nobody listened
			h.deaf.Store(false)
		}
		if !h.hear(ctx, conn, probeEvery, "") {
			return true, true
		}
	}
}

// hear passes on what comes, until probe does or that time is over. It reports
// whether the session can go on: without a probe in time it cannot.
func (h *Hub) hear(ctx context.Context, conn *pgx.Conn, limit time.Duration, probe string) bool {
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		n, err := conn.WaitForNotification(waiting)
		switch {
		case err != nil:
			return probe == "" && waiting.Err() != nil && ctx.Err() == nil && !conn.IsClosed()
		case probe != "" && n.Payload == probe:
			return true
		}
		h.heard(n.Channel, n.Payload)
	}
}
