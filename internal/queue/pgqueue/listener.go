package pgqueue

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/pgurl"
	"github.com/tendril-run/tendril/internal/queue"
)

// Reconnecting starts after reconnectMin and is put off up to reconnectMax.
const (
	reconnectMin = 100 * time.Millisecond
	reconnectMax = 10 * time.Second
)

// untoldFailures is how many sessions in a row may come to nothing before that
// is said: a database that starts again refuses a few.
const untoldFailures = 8

// silence is how many times as long as a call may take a session may hear
// nothing before it is tried.
const silence = 2

// listener keeps one session that LISTENs, and turns notifications into wakes.
// Any role can send them, so a wake says no more than: look again. A cluster id
// that is not ours is passed over, to keep other clusters' work from waking us.
type listener struct {
	config          *pgx.ConnConfig
	now             pgurl.Source
	timeout         time.Duration // for each thing asked of the database
	send            sender        // by way of the pool
	log             *slog.Logger
	work, attention chan struct{}

	// These belong to run.
	heard  bool // a session has heard what the pool sent
	failed int  // sessions that came to nothing, one after the other
	told   bool // the log says that no wake comes

	mu      sync.Mutex
	cluster string // "" until registered: everything wakes

	cancel context.CancelFunc
	done   chan struct{}
}

func startListener(config *pgx.ConnConfig, now pgurl.Source, timeout time.Duration, send sender, log *slog.Logger) *listener {
	ctx, cancel := context.WithCancel(context.Background())
	l := &listener{
		config: config, now: now, timeout: timeout, send: send, log: log, work: make(chan struct{}, 1), attention: make(chan struct{}, 1),
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
		begun, err := l.session(ctx)
		switch {
		case ctx.Err() != nil:
		case begun:
			wait = reconnectMin
		default:
			l.failed++
			l.tell(err)
			if l.deaf(err) {
				wait = deafRetry
			}
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

// deaf reports whether it is certain: a database that stalls for some seconds
// does not look like a deaf session twice.
func (l *listener) deaf(err error) bool { return errors.Is(err, errDeaf) && l.failed > 1 }

// tell logs, once until it is over, that no wake comes. Of a database that is
// away for a moment it says nothing: what is asked of it meets the same.
func (l *listener) tell(err error) {
	kind := queue.KindOf(translate("listen", err))
	refused := !errors.Is(err, errDeaf) && (kind == queue.Refused || kind == queue.Unauthorized)
	lasting := l.deaf(err) || refused || l.failed >= untoldFailures
	if l.told || !lasting {
		return
	}
	l.told = true
	l.log.Warn("the database's notifications do not arrive; the queue is polled instead", "error", translate("listen for them", err))
}

// session listens until the connection breaks and reports whether it had begun,
// or why not.
func (l *listener) session(ctx context.Context) (begun bool, err error) {
	conn, err := pgurl.Connect(ctx, l.config, l.now)
	if err != nil {
		return false, err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing) // it may be broken already
	}()
	if !l.heard {
		if err := hears(ctx, conn, l.send, l.timeout); err != nil {
			return false, err
		}
		l.heard = true
	}
	if err := l.ask(ctx, conn, "LISTEN tendril_work; LISTEN tendril_attention"); err != nil {
		return false, err
	}
	if l.told {
		l.log.Info("the database's notifications arrive again")
	}
	l.failed, l.told = 0, false
	// What was sent while nobody listened is lost: look at everything once.
	wake(l.work)
	wake(l.attention)
	for {
		n, err := l.next(ctx, conn)
		if err != nil {
			return true, nil
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
