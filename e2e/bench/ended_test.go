package bench

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/e2e/site"
)

// listener is a session that waits for notifications, as a viewer's does.
type listener struct {
	b    *testing.B
	conn *pgx.Conn
}

func listen(b *testing.B, url, channel string) *listener {
	b.Helper()
	conn, err := pgx.Connect(b.Context(), url)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(b.Context(), "LISTEN "+channel); err != nil {
		b.Fatal(err)
	}
	return &listener{b, conn}
}

// next waits for a notification.
func (l *listener) next() (payload string) {
	l.b.Helper()
	ctx, cancel := context.WithTimeout(l.b.Context(), site.Patience)
	defer cancel()
	n, err := l.conn.WaitForNotification(ctx)
	if err != nil {
		l.b.Fatalf("waiting for a notification: %v", err)
	}
	return n.Payload
}

// ended waits until provisions have ended, one notification at a time, and
// returns when the last was seen to. Each must have ended as want says.
func (l *listener) ended(want string, ids ...uuid.UUID) time.Time {
	l.b.Helper()
	open := make(map[uuid.UUID]bool, len(ids))
	for _, id := range ids {
		open[id] = true
	}
	for len(open) > 0 {
		id, err := uuid.Parse(l.next())
		if err != nil || !open[id] {
			continue
		}
		var status string
		err = l.conn.QueryRow(l.b.Context(), "SELECT status || coalesce('/' || error_code, '') FROM public.provisions WHERE id = $1", id).Scan(&status)
		switch {
		case err != nil:
			l.b.Fatal(err)
		case status == "QUEUED", status == "PROCESSING":
		case status != want:
			l.b.Fatalf("provision %s ended as %s, want %s", id, status, want)
		default:
			delete(open, id)
		}
	}
	return time.Now()
}
