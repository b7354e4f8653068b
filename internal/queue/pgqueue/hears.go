package pgqueue

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// errDeaf: LISTEN was accepted and what is sent does not arrive.
var errDeaf = errors.New("a notification sent to this session did not arrive, as happens behind a pooler in transaction mode")

const (
	// hearWithin is how long a notification may take: one that a session hears
	// at all comes within milliseconds.
	hearWithin = 3 * time.Second
	// deafRetry is when a session is tried again that was deaf: somebody has to
	// have changed the pooler.
	deafRetry = 5 * time.Minute
)

// sender sends a notification on a channel by way of the calls' connections.
type sender func(ctx context.Context, channel string) error

// hears makes sure that a new session gets what others send. A pooler in
// transaction mode takes the LISTEN and lends the server's connection, which
// listens from then on, to the next who asks: nothing fails, and nothing
// arrives. What the session sent itself would come back even so, with the
// answer, so the calls' connections send it. Its channel is like no other: a
// server's connection that keeps listening gets nothing.
func hears(ctx context.Context, conn *pgx.Conn, send sender, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	channel := "tendril_hears_" + strings.ToLower(rand.Text())
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return fmt.Errorf("LISTEN: %w", err)
	}
	if err := send(ctx, channel); err != nil {
		return fmt.Errorf("NOTIFY: %w", err)
	}
	waiting, cancel := context.WithTimeout(ctx, min(hearWithin, timeout/2))
	defer cancel()
	_, heard := conn.WaitForNotification(waiting)
	if heard != nil && !errors.Is(heard, context.DeadlineExceeded) {
		return heard
	}
	// Were the connection broken, the silence would tell nothing of a pooler.
	if _, err := conn.Exec(ctx, "UNLISTEN "+channel); err != nil {
		return fmt.Errorf("UNLISTEN: %w", err)
	}
	if heard != nil {
		return errDeaf
	}
	return nil
}

// Hears finds out whether an agent with these options would be woken: nil if it
// would. What it returns is a queue.Error.
func Hears(ctx context.Context, o Options) error {
	listen, calls := o.ListenURL, o
	calls.ListenURL = "off" // for a session of our own
	q, err := New(ctx, calls)
	if err != nil {
		return err
	}
	defer q.Close()
	config := q.pool.Config().ConnConfig
	config.OnNotification = nil // this one is to keep them
	if listen != "" {
		if config, err = pgx.ParseConfig(listen); err != nil {
			return fmt.Errorf("queue listen URL: %w", err)
		}
		boundConnect(config, q.timeout)
	}
	if err := hearsOnce(ctx, config, q.send, q.timeout); err != nil {
		return translate("listen for notifications", err)
	}
	return nil
}

func hearsOnce(ctx context.Context, config *pgx.ConnConfig, send sender, timeout time.Duration) error {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing) // nothing is lost with it
	}()
	return hears(ctx, conn, send, timeout)
}
