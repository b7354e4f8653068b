package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// From the moment at which an engine prints a line, which the line itself says,
// until another connection has read its row; against one INSERT a line in turn,
// until it is answered.
//
// With watched people follow the run, as trellis notes it; a first second of that is until
// the agent's next heartbeat.
//
// That connection is woken by NOTIFY, which a commit sends. For that the
// database tells of every commit here, not only of one in 100 ms.
func BenchmarkLineToRow(b *testing.B) {
	b.Run("after-silence", func(b *testing.B) {
		lineToRow(b, printing{During: "apply", Lines: 10, Gap: 1400 * time.Millisecond}, false)
	})
	b.Run("steady=10", func(b *testing.B) {
		lineToRow(b, printing{During: "apply", Lines: 100, Gap: 100 * time.Millisecond}, false)
	})
	b.Run("watched=10", func(b *testing.B) {
		lineToRow(b, printing{During: "apply", Lines: 100, Gap: 100 * time.Millisecond}, true)
	})
	b.Run("steady=1000", func(b *testing.B) { lineToRow(b, printing{During: "apply", Lines: 4000, Gap: time.Millisecond}, false) })
}

func lineToRow(b *testing.B, p printing, watched bool) {
	w := newPrinters(b, 1, p)
	w.Exec(b, "UPDATE tendril.settings SET log_notify = '0'")
	if watched {
		w.Exec(b, "UPDATE tendril.settings SET heartbeat = '1 s'")
	}
	w.agent.Start()
	conns := w.connect(b, 2)
	if _, err := conns[0].Exec(b.Context(), "LISTEN tendril_provision"); err != nil {
		b.Fatal(err)
	}
	var ours, bare series
	for b.Loop() {
		ids := w.deploy(b, 1)
		if watched {
			w.Exec(b, "SELECT tendril.watch($1)", ids)
		}
		w.journal.begin(b)
		bare = append(bare, w.barePaced(b, conns[1], min(p.Lines, 20))...)
		ours = append(ours, w.follow(b, conns[0], ids[0], p.Lines)...)
		w.settled(b, ids...)
		w.journal.used(b, 1)
		bare = append(bare, w.barePaced(b, conns[1], min(p.Lines, 20))...)
	}
	all := []int{1, 10, 25, 50, 75, 90, 95, 99, 100}
	ours.report(b, "", all...)
	bare.report(b, "bare-", all...)
	only(b)
}

// follow reads a log as it grows, and returns how long after it was printed each
// line was read.
func (w *printers) follow(b *testing.B, conn *pgx.Conn, id uuid.UUID, lines int) (late series) {
	b.Helper()
	seq := int64(0)
	for len(late) < lines {
		var text string
		if err := conn.QueryRow(b.Context(), `SELECT coalesce(string_agg(log_chunk, '' ORDER BY seq), ''), coalesce(max(seq), $2)
			FROM public.provision_logs WHERE provision_id = $1 AND seq > $2`, id, seq).Scan(&text, &seq); err != nil {
			b.Fatal(err)
		}
		read := time.Now()
		for _, part := range strings.Split(text, printedAt)[1:] {
			stamp, _, _ := strings.Cut(part, " ")
			nanos, err := strconv.ParseInt(stamp, 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			late.add(read.Sub(time.Unix(0, nanos)))
		}
		if len(late) < lines {
			awaitNotice(b, conn)
		}
	}
	return late
}

func awaitNotice(b *testing.B, conn *pgx.Conn) {
	b.Helper()
	// A notice may have come while the rows were read that it tells of.
	ctx, cancel := context.WithTimeout(b.Context(), 20*time.Second)
	defer cancel()
	if _, err := conn.WaitForNotification(ctx); errors.Is(err, context.DeadlineExceeded) {
		b.Fatal("no more lines come")
	} else if err != nil {
		b.Fatal(err)
	}
}

// barePaced stores lines one by one and returns how long each took.
func (w *printers) barePaced(b *testing.B, conn *pgx.Conn, n int) (took series) {
	b.Helper()
	id := uuid.New()
	for i := range n {
		line := fmt.Sprintf("module.network.aws_subnet.private[17]: Still creating... %s%d ns\n", printedAt, time.Now().UnixNano())
		began := time.Now()
		if _, err := conn.Exec(b.Context(), insertBare, id, i, w.Org, []string{line}); err != nil {
			b.Fatal(err)
		}
		took.add(time.Since(began))
	}
	return took
}
