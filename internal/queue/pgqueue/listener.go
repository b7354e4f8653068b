package pgqueue

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Reconnecting starts after reconnectMin and is put off up to reconnectMax.
const (
	reconnectMin = 100 * time.Millisecond
	reconnectMax = 10 * time.Second
)

// silence is how many times as long as a call may take a session may hear
// nothing before it is tried.
const silence = 2

// listener keeps one session that LISTENs, and turns notifications into wakes.
// Any role can send them, so a wake says no more than: look again. A cluster id
// that is not ours is passed over, to keep other clusters' work from waking us.
type listener struct {
	config          *pgx.ConnConfig
	timeout         time.Duration // for each thing asked of the database
	work, attention chan struct{}

	mu      sync.Mutex
	cluster string // "" until registered: everything wakes

	cancel context.CancelFunc
	done   chan struct{}
}

func startListener(config *pgx.ConnConfig, timeout time.Duration) *listener {
	ctx, cancel := context.WithCancel(context.Background())
	l := &listener{
		config: config, timeout: timeout, work: make(chan struct{}, 1), attention: make(chan struct{}, 1),
		cancel: cancel, done: make(chan struct{}),
	}
	go l.run(ctx)
	return l
}

func (l *listener) stop() {
	l.cancel()
	<-l.done
}

func (l *listener) watch(cluster uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cluster = cluster.String()
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
// Its errors are not told: the pool meets the same ones, and polling goes on.
func (l *listener) session(ctx context.Context) (begun bool) {
	conn, err := pgx.ConnectConfig(ctx, l.config)
	if err != nil {
		return false
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing) // it may be broken already
	}()
	if err := l.ask(ctx, conn, "LISTEN tendril_work; LISTEN tendril_attention"); err != nil {
		return false
	}
	// What was sent while nobody listened is lost: look at everything once.
	wake(l.work)
	wake(l.attention)
	for {
		n, err := l.next(ctx, conn)
		if err != nil {
			return true
		}
		l.mu.Lock()
		ours := l.cluster == "" || n.Payload == l.cluster
		l.mu.Unlock()
		switch {
		case !ours:
		case n.Channel == "tendril_work":
			wake(l.work)
		case n.Channel == "tendril_attention":
			wake(l.attention)
		}
	}
}

// ask runs a statement without an answer.
func (l *listener) ask(ctx context.Context, conn *pgx.Conn, statement string) error {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	_, err := conn.Exec(ctx, statement)
	return err
}

// next waits for a notification. After a silence the database is asked whether
// it is there: a session that only listens would never learn that what stands
// between has forgotten it.
func (l *listener) next(ctx context.Context, conn *pgx.Conn) (*pgconn.Notification, error) {
	for {
		waiting, cancel := context.WithTimeout(ctx, silence*l.timeout)
		n, err := conn.WaitForNotification(waiting)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return n, err
		}
		if err := l.ask(ctx, conn, "-- still there?"); err != nil {
			return nil, err
		}
	}
}

// wake sends without waiting; several wakes may arrive as one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
