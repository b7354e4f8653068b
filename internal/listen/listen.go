// Package listen keeps one PostgreSQL session that LISTENs, for as long as its owner
// wants: it connects, makes sure that notifications arrive, passes them on, notices a
// connection that is dead though nobody has said so, and connects again.
//
//	connect ─ LISTEN ─ probe ─▶ Began ─▶ Heard … Heard ─ silence ─▶ still there? ─▶ Quiet
//	   ▲                                                                 │ no
//	   └────────────── Wait, longer each time ◀── Lost ◀─────────────────┘
//
// A notification is a hint: any role can send one, and what is sent while nobody listens
// is lost. So Began and Quiet mean: look at everything once.
//
// A pooler in transaction mode takes a LISTEN and lends the server's connection, which
// listens from then on, to the next client. Nothing fails, and nothing arrives. What the
// session itself sends would come back even so; the probe is therefore sent by Send, over
// another connection, to a channel of this session alone.
//
// The package must not know channels, payloads or who is woken.
package listen

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/retry"
)

// ErrDeaf says that LISTEN was accepted and what is sent does not arrive.
var ErrDeaf = errors.New("a notification sent to this session did not arrive, as happens behind a pooler in transaction mode")

const (
	// Reconnecting starts after reconnectMin and is put off up to reconnectMax.
	reconnectMin = 100 * time.Millisecond
	reconnectMax = 10 * time.Second
	// hearWithin is how long a probe may take. As a rule it takes milliseconds.
	hearWithin = 3 * time.Second
	// deafRetry is when a session that was deaf is tried again: somebody must have
	// changed the pooler.
	deafRetry = 5 * time.Minute
	// closeWithin bounds how long a connection, which may be broken, takes to close.
	closeWithin = time.Second
)

// Listener says what to listen to, and what happens then. All functions but Connect may be
// nil. They are called by the goroutine of Run, one at a time, and must be quick.
type Listener struct {
	Connect  func(context.Context) (*pgx.Conn, error)
	Channels []string
	// Limit bounds each question to the database, connecting apart.
	Limit time.Duration
	// Silence is how long nothing may be heard before the connection is tried.
	Silence time.Duration
	// Send sends a notification over another connection. Without it a session that is
	// deaf is not told from one to which nothing is sent.
	Send func(ctx context.Context, channel, payload string) error
	// ProbeSilence has a probe try the connection after a silence, and not only a
	// question.
	ProbeSilence bool

	Began func()
	Heard func(channel, payload string)
	Quiet func()
	// Lost is called when there is no session, with the reason: nil for one that had
	// begun and broke.
	Lost func(error)
	// Wait waits before the next try, at most until the context ends.
	Wait func(context.Context, time.Duration)
}

// Run listens until the context ends.
func (l Listener) Run(ctx context.Context) {
	waits, deaf := retry.Between(reconnectMin, reconnectMax), false
	for ctx.Err() == nil {
		begun, err := l.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if begun {
			waits.Reset()
			err = nil
		}
		call(l.Lost != nil, func() { l.Lost(err) })
		wait := waits.NextBackOff()
		// A database that stalls for some seconds does not look deaf twice.
		again := errors.Is(err, ErrDeaf)
		if again && deaf {
			wait = retry.Jitter(deafRetry)
		}
		deaf = again
		if l.Wait != nil {
			l.Wait(ctx, wait)
		} else {
			retry.Sleep(ctx, wait)
		}
	}
}

// session listens until the connection breaks, and reports whether it had begun.
func (l Listener) session(ctx context.Context) (begun bool, err error) {
	conn, err := l.Connect(ctx)
	if err != nil {
		return false, err
	}
	defer Close(ctx, conn)
	channels := l.Channels
	probe := "tendril_hears_" + strings.ToLower(rand.Text())
	if l.Send != nil {
		channels = append([]string{probe}, channels...)
	}
	if err := l.ask(ctx, conn, "LISTEN "+strings.Join(channels, "; LISTEN ")); err != nil {
		return false, err
	}
	if l.Send != nil {
		if err := l.probe(ctx, conn, probe); err != nil {
			return false, err
		}
	}
	call(l.Began != nil, l.Began)
	for {
		n, err := next(ctx, conn, l.Silence)
		switch {
		case n != nil && n.Channel != probe:
			call(l.Heard != nil, func() { l.Heard(n.Channel, n.Payload) })
		case n != nil: // of no use any more
		case !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil:
			return true, err
		default:
			if err := l.stillThere(ctx, conn, probe); err != nil {
				return true, err
			}
			call(l.Quiet != nil, l.Quiet)
		}
	}
}

// stillThere asks after a silence. A session that only listens would never learn that
// what stands between has forgotten it.
func (l Listener) stillThere(ctx context.Context, conn *pgx.Conn, probe string) error {
	if l.ProbeSilence && l.Send != nil {
		return l.probe(ctx, conn, probe)
	}
	return l.ask(ctx, conn, "-- still there?")
}

// probe makes sure that the session gets what others send.
func (l Listener) probe(ctx context.Context, conn *pgx.Conn, channel string) error {
	limited, cancel := context.WithTimeout(ctx, l.Limit)
	defer cancel()
	payload := rand.Text()
	if err := l.Send(limited, channel, payload); err != nil {
		return fmt.Errorf("NOTIFY: %w", err)
	}
	waiting, cancel := context.WithTimeout(limited, min(hearWithin, l.Limit/2))
	defer cancel()
	for {
		n, err := conn.WaitForNotification(waiting)
		switch {
		case err == nil && n.Channel == channel && n.Payload == payload:
			return nil
		case err == nil:
			call(l.Heard != nil, func() { l.Heard(n.Channel, n.Payload) })
			continue
		case !errors.Is(err, context.DeadlineExceeded):
			return err
		}
		// Were the connection broken, the silence would tell nothing of a pooler.
		if err := l.ask(ctx, conn, "-- still there?"); err != nil {
			return err
		}
		return ErrDeaf
	}
}

// ask runs a statement without an answer.
func (l Listener) ask(ctx context.Context, conn *pgx.Conn, statement string) error {
	ctx, cancel := context.WithTimeout(ctx, l.Limit)
	defer cancel()
	_, err := conn.Exec(ctx, statement)
	return err
}

// Hears finds out whether a session of this listener hears what Send sends.
func (l Listener) Hears(ctx context.Context) error {
	conn, err := l.Connect(ctx)
	if err != nil {
		return err
	}
	defer Close(ctx, conn)
	channel := "tendril_hears_" + strings.ToLower(rand.Text())
	if err := l.ask(ctx, conn, "LISTEN "+channel); err != nil {
		return fmt.Errorf("LISTEN: %w", err)
	}
	return l.probe(ctx, conn, channel)
}

// next waits for a notification for so long.
func next(ctx context.Context, conn *pgx.Conn, silence time.Duration) (*pgconn.Notification, error) {
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	return conn.WaitForNotification(ctx)
}

// Close closes a connection that may be broken.
func Close(ctx context.Context, conn *pgx.Conn) {
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
	defer cancel()
	_ = conn.Close(closing) // nothing is lost with it
}

func call(is bool, f func()) {
	if is {
		f()
	}
}
