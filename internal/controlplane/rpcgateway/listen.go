package rpcgateway

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/pgurl"
)

// Reconnecting starts after reconnectMin and is put off up to reconnectMax.
const (
	reconnectMin = 200 * time.Millisecond
	reconnectMax = 10 * time.Second
)

// silence is how long a session may hear nothing before it is tried: one that
// only listens would never learn that what stands between has forgotten it.
const silence = 30 * time.Second

// listener keeps the one session that LISTENs.
type listener struct {
	config  *pgx.ConnConfig
	now     pgurl.Source
	silence time.Duration
	changed func() // the schema may have
	cancel  context.CancelFunc
	done    chan struct{}
}

func startListener(config *pgx.ConnConfig, now pgurl.Source, silence time.Duration, changed func()) *listener {
	ctx, cancel := context.WithCancel(context.Background())
	l := &listener{config: config.Copy(), now: now, silence: silence, changed: changed, cancel: cancel, done: make(chan struct{})}
	go l.run(ctx)
	return l
}

func (l *listener) stop() {
	l.cancel()
	<-l.done
}

func (l *listener) run(ctx context.Context) {
	defer close(l.done)
	wait := reconnectMin
	for ctx.Err() == nil {
		if l.session(ctx) {
			wait = reconnectMin
		}
		timer := time.NewTimer(wait/2 + rand.N(wait)) //nolint:gosec // jitter, not a secret
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		wait = min(wait*2, reconnectMax)
	}
}

// session listens until the connection breaks and reports whether it had begun.
// Its errors are not told: calls meet the same ones.
func (l *listener) session(ctx context.Context) (begun bool) {
	conn, err := pgurl.Connect(ctx, l.config, l.now)
	if err != nil {
		return false
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing) // it may be broken already
	}()
	if l.ask(ctx, conn, "LISTEN pgrst") != nil {
		return false
	}
	l.changed() // perhaps while nobody listened
	for {
		waiting, cancel := context.WithTimeout(ctx, l.silence)
		_, err := conn.WaitForNotification(waiting)
		quiet := waiting.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err == nil:
			l.changed()
		case quiet && l.ask(ctx, conn, "-- still there?") == nil:
			// Behind a pooler in transaction mode nothing is ever heard.
			l.changed()
		default:
			return true
		}
	}
}

func (l *listener) ask(ctx context.Context, conn *pgx.Conn, statement string) error {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	_, err := conn.Exec(ctx, statement)
	return err
}
