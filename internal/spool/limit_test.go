package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// newTail returns an empty tail as the agent makes one.
func newTail(tb testing.TB) (tail Tail) {
	tb.Helper()
	for i := range tail {
		f, err := os.OpenFile(filepath.Join(tb.TempDir(), "tail"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { _ = f.Close() })
		tail[i] = f
	}
	return tail
}

func newLimited(tb testing.TB, total int64) (*Writer, *os.File, Tail) {
	tb.Helper()
	spool, tail := newSpool(tb), newTail(tb)
	w := NewWriter(spool, nil)
	w.Limit(total, tail)
	return w, spool, tail
}

// stored returns the chunks of a dead child's spool and its tail, as whoever delivers
// them cuts them.
func stored(t *testing.T, spool *os.File, tail Tail) (chunks []provision.LogChunk) {
	t.Helper()
	var last int64
	take := func(r Record) {
		if r.Stream == "" {
			return
		}
		if r.Chunk != last {
			chunks = append(chunks, provision.LogChunk{Stream: r.Stream, EmittedAt: r.At})
			last = r.Chunk
		}
		chunks[len(chunks)-1].Text += string(r.Text)
	}
	reader := NewReader(spool)
	reader.Final()
	each(t, reader.Next, take)
	each(t, NewTailReader(tail, last).Next, take)
	return chunks
}

// each takes the records that there are.
func each(t *testing.T, next func() (Record, error), take func(Record)) {
	t.Helper()
	for {
		r, err := next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		take(r)
	}
}

// result is the report that a spool ends with; nil for none.
func result(t *testing.T, spool *os.File) (last *provision.Report) {
	t.Helper()
	reader := NewReader(spool)
	reader.Final()
	each(t, reader.Next, func(r Record) { last = r.Report })
	return last
}

func text(log []provision.LogChunk) string {
	var b strings.Builder
	for _, c := range log {
		b.WriteString(c.Text)
	}
	return b.String()
}

const leastLimit = 1 << 20

var (
	announced = regexp.MustCompile(`^This log has grown to half of its limit of 1\.0 MiB\.`)
	notShown  = regexp.MustCompile(`^… (\d+) lines \(.*\) not shown …\n$`)
	leftOut   = regexp.MustCompile(`^(\d+) lines \(.*\) are left out of this log`)
	number    = regexp.MustCompile(`(?m)^line (\d+) `)
)

// TestNothingChangesBelowTheLimit: not a byte of the spool does.
func TestNothingChangesBelowTheLimit(t *testing.T) {
	t.Parallel()
	var spools [2][]byte
	for i := range spools {
		synctest.Test(t, func(t *testing.T) {
			spool, tail := newSpool(t), newTail(t)
			w := NewWriter(spool, nil)
			if i == 1 {
				w.Limit(leastLimit, tail)
			}
			for n := range 5000 { // 440 KB
				write(t, w, provision.Stdout, fmt.Sprintf("line %d %s\n", n, strings.Repeat("x", 75)))
				if n%100 == 0 {
					w.System("said %d", n)
					time.Sleep(time.Second)
				}
			}
			if err := w.Update(ended(provision.Success)); err != nil {
				t.Error(err)
			}
			closeWriter(t, w)
			spools[i], _ = os.ReadFile(spool.Name())
			if got := len(stored(t, spool, tail)); i == 1 && got != len(stored(t, spool, Tail{})) {
				t.Errorf("%d chunks are delivered with the tail, want as many as without", got)
			}
		})
	}
	if !bytes.Equal(spools[0], spools[1]) || len(spools[0]) < 440_000 {
		t.Errorf("the spool has %d bytes with a limit, %d without, want the same", len(spools[1]), len(spools[0]))
	}
}

// TestLimit follows every line of a flood: what the log shows, and what it says
// is not shown, comes to all that was printed.
func TestLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, spool, tail := newLimited(t, leastLimit)
		const lines = 120_000 // 11 MB in two minutes
		for n := range lines {
			stream := provision.Stdout
			if n%7 == 0 {
				stream = provision.Stderr
			}
			write(t, w, stream, fmt.Sprintf("line %d %s\n", n, strings.Repeat("x", 80)))
			if n%100 == 99 {
				time.Sleep(100 * time.Millisecond)
			}
		}
		w.System("that was it")
		if err := w.Update(ended(provision.Success)); err != nil {
			t.Error(err)
		}
		closeWriter(t, w)

		next, samples, size := 0, 0, 0
		var inTail bool
		var systems []string
		for _, c := range stored(t, spool, tail) {
			size += len(c.Text)
			if c.Stream == provision.System {
				systems = append(systems, c.Text)
			}
			if m := notShown.FindStringSubmatch(c.Text); m != nil {
				samples++
				next += atoi(t, m[1])
			} else if m := leftOut.FindStringSubmatch(c.Text); m != nil {
				next, inTail = -1, true
			}
			for _, m := range number.FindAllStringSubmatch(c.Text, -1) {
				n := atoi(t, m[1])
				if inTail && next < 0 {
					next = n
				}
				if n != next {
					t.Fatalf("line %d is shown where line %d is due", n, next)
				}
				next++
			}
		}
		if !inTail || next != lines {
			t.Errorf("the log ends with line %d, want the last of %d, in the tail", next-1, lines)
		}
		if samples < 60 || samples > 120 {
			t.Errorf("%d samples in two minutes, want about one a second, then fewer", samples)
		}
		if size > leastLimit+64<<10 || size < leastLimit*5/8 {
			t.Errorf("the log has %d bytes, want about the limit of %d", size, leastLimit)
		}
		if !announced.MatchString(systems[0]) || strings.Count(strings.Join(systems, ""), "This log has grown") != 1 {
			t.Errorf("the first SYSTEM line is %q, want it to tell of the limit, once", systems[0])
		}
		if last := systems[len(systems)-1]; last != "that was it\n" {
			t.Errorf("the last SYSTEM line is %q, want what was said last", last)
		}
		wantFiles(t, spool, tail, leastLimit)
	})
}

// TestLimitCountsWhatIsLeftOut: the lines before the tail are those of the
// first half, those it counts, and no other.
func TestLimitCountsWhatIsLeftOut(t *testing.T) {
	t.Parallel()
	w, spool, tail := newLimited(t, leastLimit)
	for n := range 30_000 {
		write(t, w, provision.Stdout, fmt.Sprintf("line %d %s\n", n, strings.Repeat("x", 80)))
	}
	closeWriter(t, w)
	var all strings.Builder
	head, out, first := -1, -1, -1
	for _, c := range stored(t, spool, tail) {
		if announced.MatchString(c.Text) {
			m := number.FindAllStringSubmatch(all.String(), -1)
			head = atoi(t, m[len(m)-1][1])
		} else if m := leftOut.FindStringSubmatch(c.Text); m != nil {
			out = atoi(t, m[1])
		} else if m := number.FindStringSubmatch(c.Text); m != nil && out >= 0 && first < 0 {
			first = atoi(t, m[1])
		}
		all.WriteString(c.Text)
	}
	if head < 0 || out <= 0 || first != head+1+out {
		t.Errorf("line %d ends the first half, %d are left out, line %d begins the tail", head, out, first)
	}
}

// TestSamplesFollowARunThatFallsSilent: what it said last is seen while it hangs.
func TestSamplesFollowARunThatFallsSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, spool, _ := newLimited(t, leastLimit)
		for n := range 30_000 {
			write(t, w, provision.Stdout, fmt.Sprintf("line %d %s\n", n, strings.Repeat("x", 80)))
		}
		write(t, w, provision.Stderr, "a question? ")
		if strings.Contains(textOf(spooled(t, spool), ""), "line 29999 ") {
			t.Fatal("the spool has the last line at once, want it sampled")
		}
		time.Sleep(sampleEvery)
		synctest.Wait()
		if !strings.HasSuffix(textOf(spooled(t, spool), provision.Stdout), "line 29999 "+strings.Repeat("x", 80)+"\n") {
			t.Error("the sample does not end with the last line")
		}
		time.Sleep(2 * sampleEvery)
		synctest.Wait()
		if got := textOf(spooled(t, spool), provision.Stderr); got != "a question? " {
			t.Errorf("the sample after it has %q, want the line without an end", got)
		}
		time.Sleep(time.Hour)
		write(t, w, provision.Stdout, "awake\n")
		records := spooled(t, spool)
		if got := records[len(records)-1]; got.Text != "awake\n" || got.Stream != provision.Stdout {
			t.Errorf("after silence the spool has %q, want the line at once", got.Text)
		}
		closeWriter(t, w)
	})
}

// TestNothingIsWrittenAfterTheEndBeyondTheLimit: a sample would undo the result.
func TestNothingIsWrittenAfterTheEndBeyondTheLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, spool, _ := newLimited(t, leastLimit)
		for range 20_000 {
			write(t, w, provision.Stdout, strings.Repeat("x", 80)+"\n")
		}
		if err := w.Update(ended(provision.Success)); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour) // a sample was due
		closeWriter(t, w)
		if got := result(t, spool); got == nil || got.Status != provision.Success {
			t.Errorf("the spool ends with %+v, want SUCCESS", got)
		}
	})
}

// TestSamplesLastForTheLongestRun: at the least limit, printing all the time.
func TestSamplesLastForTheLongestRun(t *testing.T) {
	t.Parallel()
	const longest = 7 * 24 * time.Hour
	for _, limit := range []int64{leastLimit, 64 << 20, 4 << 30} {
		size := int64(sampleSize(limit / 4))
		p := pace{budget: limit / 4, left: limit / 4, size: size}
		start := time.Unix(0, 0)
		now, samples, last := start, 0, time.Duration(0)
		for now.Sub(start) < longest && !p.over() {
			p.spend(now, size+40)
			last, now = p.next.Sub(now), p.next
			samples++
			if samples == 20 && now.Sub(start) > 40*time.Second {
				t.Errorf("limit %d: 20 samples take %v, want about one a second", limit, now.Sub(start))
			}
		}
		if p.over() || last > sampleSeldom {
			t.Errorf("limit %d: over after %v, %d samples, the last wait %v", limit, now.Sub(start), samples, last)
		}
	}
}

// wantFiles holds the files against a limit of so many bytes of text.
func wantFiles(t *testing.T, spool *os.File, tail Tail, limit int64) {
	t.Helper()
	for _, f := range []struct {
		*os.File
		most int64
	}{{spool, limit * 6 / 4}, {tail[0], limit / 4}, {tail[1], limit / 4}} {
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > f.most {
			t.Errorf("%s has %d bytes, want at most %d", f.Name(), info.Size(), f.most)
		}
	}
}

func atoi(t *testing.T, s string) (n int) {
	t.Helper()
	if _, err := fmt.Sscan(s, &n); err != nil {
		t.Fatal(err)
	}
	return n
}
