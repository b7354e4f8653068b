package store

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	// watchEvery is how often a watched provision is looked at when no
	// notification comes: they are hints, and may be lost.
	watchEvery = time.Second
	// watchPatience is how long the database may be away while a provision is
	// watched.
	watchPatience = 10 * time.Second
	// relisten is how long to wait before listening again after the session broke.
	relisten = 2 * time.Second
)

// Watch calls look at once, then whenever the provision may have changed, and
// at least each second, until look says that it is done or returns an error.
// A database that is away for less than 10 s is waited for. Calls of look never
// overlap.
func (s *Store) Watch(ctx context.Context, id uuid.UUID, look func(context.Context) (done bool, err error)) error {
	ctx, cancel := context.WithCancel(ctx)
	changed, ended := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ended)
		s.listen(ctx, id.String(), changed)
	}()
	defer func() {
		cancel()
		<-ended
	}()

	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	answered := time.Now()
	for {
		done, err := look(ctx)
		_, away := errors.AsType[*UnreachableError](err)
		switch {
		case err == nil && done:
			return nil
		case err == nil:
			answered = time.Now()
		case !away || time.Since(answered) > watchPatience || ctx.Err() != nil:
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-tick.C:
		}
	}
}

// listen sends on changed whenever a notification names the provision, until
// the context ends. Without a session to listen on (a pooler, a database that
// is away) polling goes on.
func (s *Store) listen(ctx context.Context, id string, changed chan<- struct{}) {
	for ctx.Err() == nil {
		s.listenOnce(ctx, id, changed)
		select {
		case <-ctx.Done():
		case <-time.After(relisten):
		}
	}
}

func (s *Store) listenOnce(ctx context.Context, id string, changed chan<- struct{}) {
	config := s.pool.Config().ConnConfig
	config.OnNotification = nil // this one is to keep them
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing) // it may be broken already
	}()
	if _, err := conn.Exec(ctx, "LISTEN tendril_provision"); err != nil {
		return
	}
	for payload := id; ; { // what came before the session is looked for once
		if payload == id {
			select {
			case changed <- struct{}{}:
			default: // one is waiting already
			}
		}
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return
		}
		payload = n.Payload
	}
}
