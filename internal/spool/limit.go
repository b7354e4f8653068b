package spool

import (
	"bytes"
	"fmt"
	"iter"
	"time"
	"unicode/utf8"

	"github.com/tendril-run/tendril/internal/provision"
)

// limit is what a Writer knows of a log that may become too long. The first
// half of the log's limit is written to the spool like any text. Of what comes
// after it the spool gets samples only, a quarter of the limit at most, and the
// tail files keep the end, which takes the last quarter (see Tail).
type limit struct {
	total  int64
	spent  int64 // what the spool holds, by weight
	whole  bool  // the last text in the spool ended its line
	begun  bool  // the first half is full
	dead   bool  // the child is: there is only a last line to add, after the tail
	tail   *tailWriter
	recent recent
	pace   pace
}

// weight is what a record counts against a limit: its text, or a quarter of
// its bytes in the file where that is more. So lines that are all punctuation
// of records do not fill the disk: it never holds more than four times the limit.
func weight(text, record int) int64 { return int64(max(text, record/4)) }

// passed notes a record that the spool has taken.
func (l *limit) passed(stream provision.Stream, text, record []byte) {
	l.spent += weight(len(text), len(record))
	if stream != provision.System {
		l.whole = text[len(text)-1] == '\n'
	}
}

// reached reports whether what the engine prints now goes to the tail. The
// line at hand may come to its end before, if that is near.
func (l *limit) reached() bool {
	over := l.spent - l.total/2
	return l.begun || over >= 0 && l.whole || over >= lineSlack
}

// epilogue reports whether the child is dead and the log goes on after its tail:
// the chunks that the spool's next ones would be are the tail's.
func (l *limit) epilogue() bool { return l != nil && l.begun && l.dead }

// extent says how much a piece of a log is.
func extent(lines, bytes int64) string { return fmt.Sprintf("%d lines (%s)", lines, size(bytes)) }

// size writes a number of bytes for people.
func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	default:
		return fmt.Sprintf("%d bytes", n)
	}
}

// lineCount returns how many lines end in text.
func lineCount(text []byte) int64 { return int64(bytes.Count(text, []byte("\n"))) }

const (
	// sampleEvery is the least time between two samples.
	sampleEvery = time.Second
	// sampleSeldom is the most.
	sampleSeldom = 24 * time.Hour
	// maxSample is the most text of one, in bytes.
	maxSample = 4 << 10
	// minSamples is how many full ones the budget is good for, at least.
	minSamples = 256
)

// sampleSize returns how large samples may be of which all together may have
// budget bytes.
func sampleSize(budget int64) int { return int(min(maxSample, budget/minSamples)) }

// pace decides when the next sample is due. The less is left of the budget, the
// longer it takes, by the fourth power: so the least budget, of 256 samples,
// lasts for weeks where a run may take one, and an ordinary one, of 4096, gives
// a sample every 6 seconds after an hour and every 4 minutes after a day.
type pace struct {
	budget, left, size int64
	next               time.Time
}

// spend notes a sample of so many bytes. A small one is waited for less long.
func (p *pace) spend(now time.Time, bytes int64) {
	p.left -= bytes
	slow := float64(p.budget) / float64(max(p.left, 1))
	wait := float64(sampleEvery) * slow * slow * slow * slow * float64(bytes) / float64(p.size)
	p.next = now.Add(time.Duration(min(max(wait, float64(sampleEvery)), float64(sampleSeldom))))
}

// over reports whether there may be no more.
func (p *pace) over() bool { return p.left < 2*p.size }

// recent keeps the newest text that was not shown, twice size at most, and
// counts what was there before it and is not shown either.
type recent struct {
	size         int
	text         []byte
	runs         []streamRun // whose text it is
	lines, bytes int64
}

// streamRun is text of one stream.
type streamRun struct {
	stream provision.Stream
	size   int
}

// add appends text, which is not empty.
func (r *recent) add(stream provision.Stream, text []byte) {
	if more := len(text) - r.size; more > 0 {
		r.drop(len(r.text))
		more = nextRune(text, more)
		r.skip(text[:more])
		text = text[more:]
	} else if len(r.text)+len(text) > 2*r.size {
		r.drop(nextRune(r.text, len(r.text)+len(text)-r.size))
	}
	r.text = append(r.text, text...)
	if last := len(r.runs) - 1; last >= 0 && r.runs[last].stream == stream {
		r.runs[last].size += len(text)
	} else {
		r.runs = append(r.runs, streamRun{stream, len(text)})
	}
}

// trim leaves no more than size, beginning with a line where that is possible
// and something is missing before it.
func (r *recent) trim() {
	if more := len(r.text) - r.size; more > 0 {
		r.drop(nextRune(r.text, more))
	}
	first := bytes.IndexByte(r.text, '\n')
	if r.bytes > 0 && first < bytes.LastIndexByte(r.text, '\n') {
		r.drop(first + 1)
	}
}

// take yields the whole lines there are, or all where there is none, and
// forgets them.
func (r *recent) take() iter.Seq2[provision.Stream, []byte] {
	return func(yield func(provision.Stream, []byte) bool) {
		end := bytes.LastIndexByte(r.text, '\n') + 1
		if end == 0 {
			end = len(r.text)
		}
		left := r.text[:end]
		for _, run := range r.runs {
			n := min(run.size, len(left))
			if n == 0 || !yield(run.stream, left[:n]) {
				break
			}
			left = left[n:]
		}
		r.forget(end)
		r.lines, r.bytes = 0, 0
	}
}

func (r *recent) pending() bool { return len(r.text) > 0 }

// drop leaves the first n bytes out.
func (r *recent) drop(n int) {
	r.skip(r.text[:n])
	r.forget(n)
}

// skip counts text that is not shown.
func (r *recent) skip(text []byte) {
	r.lines += lineCount(text)
	r.bytes += int64(len(text))
}

// forget removes the first n bytes.
func (r *recent) forget(n int) {
	r.text = r.text[:copy(r.text, r.text[n:])]
	gone := 0
	for gone < len(r.runs) && r.runs[gone].size <= n {
		n -= r.runs[gone].size
		gone++
	}
	r.runs = r.runs[:copy(r.runs, r.runs[gone:])]
	if n > 0 {
		r.runs[0].size -= n
	}
}

// nextRune returns the first start of a rune at or after i.
func nextRune(text []byte, i int) int {
	for i < len(text) && !utf8.RuneStart(text[i]) {
		i++
	}
	return i
}
