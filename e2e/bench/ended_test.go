package bench

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/patience"
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
	ctx, cancel := patience.Context(l.b.Context(), site.Patience)
	defer cancel()
	n, err := l.conn.WaitForNotification(ctx)
	if err != nil {
		l.b.Fatalf("waiting for a notification: %v", err)
	}
	return n.Payload
}

// ended waits until a provision has ended and returns when it was seen to. It
// must have ended as want says.
func (l *listener) ended(want string, provision uuid.UUID) time.Time {
	l.b.Helper()
	for {
		if l.next() != provision.String() {
			continue
		}
		var status string
		err := l.conn.QueryRow(l.b.Context(), "SELECT status || coalesce('/' || error_code, '') FROM public.provisions WHERE id = $1", provision).Scan(&status)
		switch {
		case err != nil:
			l.b.Fatal(err)
		case status == want:
			return time.Now()
		case status != "QUEUED" && status != "PROCESSING":
			l.b.Fatalf("provision %s ended as %s, want %s", provision, status, want)
		}
	}
}

// allEnded is ended for many. It asks now and then: who looks at each of their
// notifications takes a part of the machine that is measured.
func allEnded(s *site.Site, want string, provisions []uuid.UUID) time.Time {
	s.T.Helper()
	s.Await("the end of all", "SELECT bool_and(status NOT IN ('QUEUED', 'PROCESSING')) FROM public.provisions WHERE id = ANY($1)", provisions)
	end := time.Now()
	if got := s.Text(s.T, "SELECT string_agg(DISTINCT status || coalesce('/' || error_code, ''), ' ') FROM public.provisions WHERE id = ANY($1)", provisions); got != want {
		s.T.Fatalf("provisions ended as %s, want %s", got, want)
	}
	return end
}
