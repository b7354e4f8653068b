package delivery

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/spool"
)

// smallLimit has a tail that a test fills many times over.
const smallLimit = 64 << 10

// TestTailOfAKilledChild: a child that is far beyond its log's limit is killed
// at any moment, so that its files are torn at any byte; agents that deliver
// what it left lose replies and are killed; the last one is told the end of the
// story by Resume. The database then has the first half, the samples, and all
// of the tail that is whole, once, in order, and the story's end after it.
func TestTailOfAKilledChild(t *testing.T) {
	t.Parallel()
	for range 60 {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) { killBeyondTheLimit(t, seed) })
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func killBeyondTheLimit(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	w, livingSpool, livingTail := newLimited(t, smallLimit)
	printed := printBeyondTheLimit(t, r, w)
	file, tail := copyOf(t, livingSpool), spool.Tail{copyOf(t, livingTail[0]), copyOf(t, livingTail[1])}
	current := newest(t, tail)
	closeWriter(t, w)
	tear(t, r, current)
	wantPrinted(t, stored(t, copyOf(t, file), tail), printed)

	before := text(stored(t, file, tail))
	q := &memQueue{fault: unreliable(rand.New(rand.NewPCG(seed, 1)))}
	claim := uuid.New()
	pump := func() *Pump { return NewPump(q, claim, file, PumpOptions{Resume: true, Tail: tail}) }
	for range r.IntN(4) {
		done := closed()
		if r.IntN(3) == 0 {
			done = nil // the child lives: nothing of the tail may be told
		}
		kill(t, r, pump(), nil, done)
	}
	resumed, err := spool.Resume(file, tail)
	if err != nil {
		t.Fatal(err)
	}
	resumed.System("the child died")
	if err := resumed.Update(ended(provision.Failed)); err != nil {
		t.Fatal(err)
	}
	closeWriter(t, resumed)
	over := r.IntN(3) > 0
	if !over { // the agent is killed before its update is whole
		size, err := file.Seek(0, 2)
		if err == nil {
			err = os.Truncate(file.Name(), size-2)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for range r.IntN(3) {
		kill(t, r, pump(), nil, closed())
	}
	d, err := pump().Run(t.Context(), nil, closed())
	if err != nil || (d.Result != nil) != over {
		t.Fatalf("Run() = %+v, %v, want a result: %t", d, err, over)
	}
	if got, want := q.text(), before+"the child died\n"; got != want {
		t.Errorf("stored %d bytes, want %d\n…%.200q\n…%.200q", len(got), len(want), got[max(0, len(got)-200):], want[max(0, len(want)-200):])
	}
	if last := q.order[len(q.order)-1]; over && last != "report FAILED" {
		t.Errorf("the last thing stored is %s, want report FAILED", last)
	}
}

// printBeyondTheLimit prints up to four times the limit and returns all of it.
func printBeyondTheLimit(t *testing.T, r *rand.Rand, w *spool.Writer) string {
	var printed strings.Builder
	streams := []provision.Stream{provision.Stdout, provision.Stderr, provision.Stdout, provision.System}
	for n := 0; printed.Len() < smallLimit*3/4+r.IntN(3*smallLimit); n++ {
		stream := streams[r.IntN(len(streams))]
		text := strings.Repeat(fmt.Sprintf("%s %d é ", stream, n), 1+r.IntN(20)) + "\n"
		if stream == provision.System {
			w.System("%s", text)
		} else {
			write(t, w, stream, text)
		}
		printed.WriteString(text)
		if r.IntN(20) == 0 {
			time.Sleep(time.Duration(r.Int64N(int64(3 * time.Second))))
			synctest.Wait()
		}
	}
	return printed.String()
}

// wantPrinted holds a log against what was printed, SYSTEM lines included: it
// begins like that, and its tail is a piece of it near the end.
func wantPrinted(t *testing.T, log []provision.LogChunk, printed string) {
	t.Helper()
	head, tail := parts(log)
	if !strings.HasPrefix(printed, head) || len(head) < smallLimit/2-smallLimit/8 {
		t.Errorf("the log begins with %d bytes that are not those printed first", len(head))
	}
	at := strings.Index(printed, tail)
	if tail == "" || at < 0 {
		t.Fatalf("the log ends with %d bytes that were not printed so", len(tail))
	}
	if torn := len(printed) - at - len(tail); torn > 1000 {
		t.Errorf("the tail lacks the last %d bytes that were printed, want less than a line", torn)
	}
}

// tear cuts a file within its last record, or not at all.
func tear(t *testing.T, r *rand.Rand, file *os.File) {
	t.Helper()
	content, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	last := strings.LastIndex(strings.TrimSuffix(string(content), "\n"), "\n") + 1
	if last == 0 {
		return // there is but a head
	}
	if err := os.Truncate(file.Name(), int64(last+r.IntN(len(content)-last+1))); err != nil {
		t.Fatal(err)
	}
}

// copyOf returns a copy of a file, opened alike.
func copyOf(t *testing.T, file *os.File) *os.File {
	t.Helper()
	content, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "copy"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestTailStaysWhileTheChildLives: it may still change, so not a line of it is
// told before.
func TestTailStaysWhileTheChildLives(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := goLive(t, nil, false)
		l.w.Limit(smallLimit, l.tail)
		for range 2000 {
			write(t, l.w, provision.Stdout, strings.Repeat("x", 99)+"\n")
		}
		l.update(ended(provision.Success))
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := l.q.text(); strings.Contains(got, "left out") || len(got) > smallLimit*5/8 {
			t.Errorf("%d bytes are stored while the child lives, want the first half", len(got))
		}
		l.die()
		if _, tail := parts(l.q.chunks); len(tail) < smallLimit/8 || l.got.Result == nil {
			t.Errorf("Run() = %+v, a tail of %d bytes, want SUCCESS after at least %d", l.got, len(tail), smallLimit/8)
		}
		if last := l.q.order[len(l.q.order)-1]; last != "report SUCCESS" {
			t.Errorf("the last thing stored is %s, want report SUCCESS", last)
		}
	})
}

// TestTailIsDamaged: garbage in it costs what it replaced, and no more.
func TestTailIsDamaged(t *testing.T) {
	t.Parallel()
	w, file, tail := newLimited(t, smallLimit)
	for n := range 2000 {
		write(t, w, provision.Stdout, fmt.Sprintf("line %d %s\n", n, strings.Repeat("x", 88)))
	}
	closeWriter(t, w)
	content, err := os.ReadFile(tail[0].Name())
	if err != nil {
		t.Fatal(err)
	}
	spoilt := []byte(strings.Replace(string(content), `"s":"STDOUT"`, `"s":"STDLOG"`, 1))
	if err := os.WriteFile(tail[0].Name(), spoilt, 0o600); err != nil {
		t.Fatal(err)
	}
	q := &memQueue{}
	d := run(t, NewPump(q, uuid.New(), file, PumpOptions{Tail: tail}))
	if d.Skipped != 1 {
		t.Errorf("Run() = %+v, want one line skipped", d)
	}
	if !strings.HasSuffix(q.text(), "line 1999 "+strings.Repeat("x", 88)+"\n") {
		t.Error("what is behind the damage is not delivered")
	}
}

// parts returns what a log shows before it reaches its limit, and its tail.
func parts(log []provision.LogChunk) (head, tail string) {
	rest := text(log)
	head, rest, _ = strings.Cut(rest, "This log has grown")
	for _, mark := range []string{" left out of this log, but", "Nothing is left out"} {
		if _, after, ok := strings.Cut(rest, mark); ok {
			_, tail, _ = strings.Cut(after, "once more.\n")
		}
	}
	return head, tail
}

func text(log []provision.LogChunk) string {
	var b strings.Builder
	for _, c := range log {
		b.WriteString(c.Text)
	}
	return b.String()
}

// stored returns what the database has of a spool and its tail.
func stored(t *testing.T, file *os.File, tail spool.Tail) []provision.LogChunk {
	t.Helper()
	q := &memQueue{}
	run(t, NewPump(q, uuid.New(), file, PumpOptions{Tail: tail}))
	return q.chunks
}

// newest is the file of a tail that was written last.
func newest(t *testing.T, tail spool.Tail) *os.File {
	t.Helper()
	var segments [2]int64
	for i := range tail {
		content, err := os.ReadFile(tail[i].Name())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Sscanf(string(content), `{"segment":%d`, &segments[i]) // 0 for one that was not begun
	}
	if segments[0] > segments[1] {
		return tail[0]
	}
	return tail[1]
}
