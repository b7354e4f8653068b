package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/listen"
	"github.com/tendril-run/tendril/internal/pgurl"
	"github.com/tendril-run/tendril/internal/queue"
)

// untoldFailures is how many sessions in a row may come to nothing before that
// is said: a database that starts again refuses a few.
const untoldFailures = 8

// silence is how many times as long as a call may take a session may hear
// nothing before it is tried.
const silence = 2

// listener turns notifications into wakes. Any role can send them, so a wake says no
// more than: look again. An id that is not ours is passed over, to keep what
// others do from waking us.
type listener struct {
	log             *slog.Logger
	instance        string // the agent's
	work, attention chan struct{}

	// These belong to the goroutine that listens.
	failed int  // sessions that came to nothing, one after the other
	told   bool // the log says that no wake comes

	mu      sync.Mutex
	cluster string // "" until registered: everything wakes
	// named: this session has heard that the database names the agent that is meant. What it
	// sends with that to agents of older releases is not for us.
	named bool

	cancel context.CancelFunc
	done   chan struct{}
}

// startListener listens until stop. Each thing asked of the database may take timeout;
// send goes by way of the pool.
func startListener(config *pgx.ConnConfig, now pgurl.Source, timeout time.Duration, send sender, instance uuid.UUID, log *slog.Logger) *listener {
	ctx, cancel := context.WithCancel(context.Background())
	l := &listener{log: log, instance: instance.String(), work: make(chan struct{}, 1), attention: make(chan struct{}, 1), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		listen.Listener{
			Connect:  func(ctx context.Context) (*pgx.Conn, error) { return pgurl.Connect(ctx, config, now) },
			Channels: []string{workChannel, agentChannel, attentionChannel}, Limit: timeout, Silence: silence * timeout,
			Send: send, Began: l.began, Heard: l.heard, Lost: l.lost,
		}.Run(ctx)
	}()
	return l
}

// The channels of what the database sends to agents: ids of clusters, and on agentChannel of
// the one agent that is meant. A database of an earlier release sends attentionChannel alone,
// today's after agentChannel.
const (
	workChannel      = "tendril_work"
	agentChannel     = "tendril_agent"
	attentionChannel = "tendril_attention"
)

// sender sends a notification by way of the calls' connections.
type sender func(ctx context.Context, channel, payload string) error

func (l *listener) stop() {
	l.cancel()
	<-l.done
}

func (l *listener) watch(cluster uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cluster = cluster.String()
}

func (l *listener) began() {
	if l.told {
		l.log.Info("the database's notifications arrive again")
	}
	l.failed, l.told = 0, false
	l.mu.Lock()
	l.named = false // it may be another database's
	l.mu.Unlock()
	// What was sent while nobody listened is lost: look at everything once.
	wake(l.work)
	wake(l.attention)
}

func (l *listener) heard(channel, payload string) {
	l.mu.Lock()
	ours := l.cluster == "" || payload == l.cluster
	l.named = l.named || channel == agentChannel
	named := l.named
	l.mu.Unlock()
	switch {
	case channel == agentChannel && payload == l.instance:
		wake(l.attention)
	case channel == workChannel && ours:
		wake(l.work)
	case channel == attentionChannel && ours && !named:
		wake(l.attention)
	}
}

// lost logs, once until it is over, that no wake comes. Of a database that is
// away for a moment it says nothing: what is asked of it meets the same.
func (l *listener) lost(err error) {
	if err == nil { // a session that broke
		return
	}
	l.failed++
	deaf := errors.Is(err, listen.ErrDeaf)
	kind := queue.KindOf(translate("listen", err))
	refused := !deaf && (kind == queue.Refused || kind == queue.Unauthorized)
	// A database that stalls for some seconds does not look deaf twice.
	lasting := refused || deaf && l.failed > 1 || l.failed >= untoldFailures
	if l.told || !lasting {
		return
	}
	l.told = true
	l.log.Warn("the database's notifications do not arrive; the queue is polled instead", "error", translate("listen for them", err))
}

// Hears finds out whether an agent with these options would be woken: nil if it
// would. What it returns is a queue.Error.
func Hears(ctx context.Context, o Options) error {
	listenURL, calls := o.ListenURL, o
	calls.ListenURL = "off" // for a session of our own
	q, err := New(ctx, calls)
	if err != nil {
		return err
	}
	defer q.Close()
	config := q.pool.Config().ConnConfig
	config.OnNotification = nil // this one is to keep them
	if listenURL != "" {
		if config, err = pgx.ParseConfig(listenURL); err != nil {
			return fmt.Errorf("queue listen URL: %w", err)
		}
		boundConnect(config, q.timeout)
	}
	l := listen.Listener{
		Connect: func(ctx context.Context) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, config) },
		Limit:   q.timeout, Send: q.send,
	}
	if err := l.Hears(ctx); err != nil {
		return translate("listen for notifications", err)
	}
	return nil
}

// wake sends without waiting; several wakes may arrive as one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
