package logstream

import (
	"bytes"
	"fmt"
	"time"

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
	tail   *tailWriter
	recent recent
	pace   pace
}

// Limit bounds the log at total bytes of text, in all that is kept of it. The
// files of the tail, opened to be read and appended to, stay the caller's.
// Call it before anything is written.
func (w *Writer) Limit(total int64, tail Tail) {
	w.mu.Lock()
	defer w.mu.Unlock()
	size := sampleSize(total / 4)
	w.limit = &limit{
		total:  total,
		tail:   newTailWriter(tail, total/8),
		recent: recent{size: size},
		pace:   pace{budget: total / 4, left: total / 4, size: int64(size)},
	}
	w.file.spare = w.limit.tail
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
func (l *limit) epilogue() bool { return l != nil && l.begun && l.tail.dead }

// beyond takes text that the spool has no room for, and returns how much of it.
func (w *Writer) beyond(name provision.Stream, text []byte) (int, error) {
	l, now := w.limit, time.Now()
	if !l.begun {
		if err := w.put(provision.System, fmt.Appendf(nil, "This log has grown to half of its limit of %s. "+
			"From here on only samples of it are shown; its end follows whole when the run is over.\n", size(l.total)), now); err != nil {
			return 0, err
		}
		l.begun = true
		l.pace.next = now.Add(sampleEvery)
	}
	n, err := l.tail.append(name, now, text)
	if n == 0 || l.epilogue() {
		return n, err
	}
	l.recent.add(name, text[:n])
	if err != nil {
		return n, err
	}
	if now.Before(l.pace.next) {
		w.look(l.pace.next)
		return n, nil
	}
	_ = w.sample(now) // the tail has the text
	return n, nil
}

// sample shows the newest of what came since the last sample.
func (w *Writer) sample(now time.Time) error {
	l := w.limit
	if l.pace.over() {
		return nil
	}
	before := l.spent
	l.recent.trim()
	if l.recent.bytes > 0 {
		if err := w.put(provision.System, fmt.Appendf(nil, "… %s not shown …\n", extent(l.recent.lines, l.recent.bytes)), now); err != nil {
			return err
		}
	}
	for name, text := range l.recent.take() {
		if err := w.put(name, text, now); err != nil {
			return err
		}
	}
	w.closeChunk()
	l.pace.spend(now, l.spent-before)
	if l.recent.pending() {
		w.look(l.pace.next)
	}
	return nil
}

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
