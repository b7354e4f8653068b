package wiretest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/wiretest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var notes = pgtest.WithSetup("notes", func(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `CREATE TABLE public.notes (text text);
		CREATE FUNCTION public.note(p text) RETURNS bigint LANGUAGE sql AS 'INSERT INTO public.notes VALUES (p); SELECT count(*) FROM public.notes'`)
	return errors.Join(err, conn.Close(ctx))
})

// line is a database and a proxy before it.
type line struct {
	*wiretest.Proxy
	t   *testing.T
	db  *pgtest.DB
	own *pgx.Conn // past the proxy
}

func newLine(t *testing.T) *line {
	db := pgtest.New(t, notes)
	return &line{Proxy: wiretest.New(t, db.URL), t: t, db: db, own: db.Conn(t)}
}

func (l *line) dial() *pgx.Conn {
	l.t.Helper()
	conn, err := pgx.Connect(l.t.Context(), l.URL(l.db.URL))
	if err != nil {
		l.t.Fatalf("connect by way of the proxy: %v", err)
	}
	l.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(ctx) // most are broken
	})
	return conn
}

// note calls the function the way an agent calls its own.
func note(ctx context.Context, conn *pgx.Conn, text string) error {
	var n int64
	return conn.QueryRow(ctx, "SELECT public.note($1)", pgx.QueryExecModeCacheDescribe, text).Scan(&n)
}

func (l *line) noted(want int) {
	l.t.Helper()
	var got int
	if err := l.own.QueryRow(l.t.Context(), "SELECT count(*) FROM public.notes").Scan(&got); err != nil || got != want {
		l.t.Errorf("notes = %d, %v, want %d", got, err, want)
	}
}

// only gives the first call of note that fate, and delivers the rest.
func (l *line) only(fate wiretest.Fate) {
	met := make(chan struct{}, 1)
	met <- struct{}{}
	l.Judge(func(c wiretest.Call) wiretest.Fate {
		if c.Function != "note" || len(c.Args) != 1 || c.Args[0] != "fig" {
			l.t.Errorf("call = %+v, want note(fig)", c)
		}
		select {
		case <-met:
			return fate
		default:
			return wiretest.Deliver
		}
	})
}

func TestCallsAreJudged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fate wiretest.Fate
		fail bool
		then int
	}{
		"delivered":    {wiretest.Deliver, false, 1},
		"reply lost":   {wiretest.LoseReply, true, 1},
		"request lost": {wiretest.LoseRequest, true, 0},
		"delayed":      {wiretest.Delay, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLine(t)
			l.only(c.fate)
			conn := l.dial()
			if err := note(t.Context(), conn, "fig"); (err != nil) != c.fail {
				t.Errorf("first call = %v, want an error: %v", err, c.fail)
			}
			l.noted(c.then)
			if err := note(t.Context(), l.dial(), "fig"); err != nil {
				t.Errorf("the next call = %v", err)
			}
			delivered := l.DeliverDelayed()
			if want := map[bool]int{true: 1}[c.fate == wiretest.Delay]; delivered != want {
				t.Errorf("DeliverDelayed() = %d, want %d", delivered, want)
			}
			l.noted(c.then + 1 + delivered)
		})
	}
}

func TestBlackHoleKeepsWhatItHas(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	conn := l.dial()
	l.BlackHole()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := note(ctx, conn, "fig"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("call into a black hole = %v, want no answer until its time is over", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := pgx.Connect(ctx, l.URL(l.db.URL)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("connect into a black hole = %v, want no answer until its time is over", err)
	}
	l.Pass()
	l.noted(0)
	if err := note(t.Context(), l.dial(), "fig"); err != nil {
		t.Errorf("call after it = %v", err)
	}
}

func TestStallDeliversLate(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	conn := l.dial()
	l.Stall()
	called := make(chan error, 1)
	go func() { called <- note(t.Context(), conn, "fig") }()
	l.noted(0)
	l.Pass()
	if err := <-called; err != nil {
		t.Errorf("stalled call = %v, want an answer when it goes on", err)
	}
	l.noted(1)
}

func TestRefuseAndCut(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	conn := l.dial()
	if n := l.Cut(); n != 1 {
		t.Errorf("Cut() = %d, want 1", n)
	}
	if err := note(t.Context(), conn, "fig"); err == nil {
		t.Error("a connection that was cut answers")
	}
	conn = l.dial()
	l.Refuse()
	if err := note(t.Context(), conn, "fig"); err == nil {
		t.Error("a connection that was cut answers")
	}
	if _, err := pgx.Connect(t.Context(), l.URL(l.db.URL)); err == nil {
		t.Error("a connection that is refused is made")
	}
	l.Pass()
	if err := note(t.Context(), l.dial(), "fig"); err != nil {
		t.Errorf("call after it = %v", err)
	}
}

func TestSlow(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	conn := l.dial()
	const latency = 50 * time.Millisecond
	l.Slow(latency, 100_000)
	began := time.Now()
	if err := note(t.Context(), conn, "fig"); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 2*latency {
		t.Errorf("a call took %s, want at least %s", took, 2*latency)
	}
}
