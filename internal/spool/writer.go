package spool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/redact"
)

// Writer writes a spool: what a run prints, masked and in numbered chunks, and
// what it reports, in the order in which it was called. All of its methods are
// safe for concurrent use. Nothing is kept in memory but the beginning of a
// rune, what may be the start of a secret, and what is gathered (see Gather).
//
// After a final report it takes nothing more, as if it were closed: a report
// that anything follows does not count (see package delivery).
//
// When the spool cannot be written (a full disk), the text at hand is lost.
// Writes to streams return that error from then on, so that the run can be
// ended; System and the updates are still tried, with the room that is kept for
// them (see Reserve), and the first that succeeds is preceded by a SYSTEM line
// which says that lines are missing.
type Writer struct {
	doorbell io.Writer

	mu      sync.Mutex
	file    spoolFile
	secrets redact.Secrets
	streams []*stream
	updates int64 // the number of the last update
	closed  bool
	ended   bool // the final report is written: anything after it would undo it

	chunk    int64 // the number of the last chunk
	open     bool  // whether the last chunk is
	of       provision.Stream
	size     int
	due      time.Time // when the open chunk is to be closed
	lastText time.Time

	limit *limit // nil: none

	timer *time.Timer
	// flushAfter is the longest a byte waits for its chunk to close.
	flushAfter time.Duration
	looking    time.Time // when the timer goes off; zero if it does not
	stop       func()
	stopped    chan struct{}

	gather   bool
	gatherer *stream   // the stream that has gathered text; nil: none
	settling bool      // gathered text is being written, and may wait for room
	settled  sync.Cond // it is not any more

	ring bool // there is something new to deliver
	room room
	line []byte
}

// NewWriter returns a Writer on an empty spool opened with O_APPEND. The
// doorbell, which may be nil, gets a byte when there is something to deliver;
// its errors are ignored, and it must not block (see NewDoorbell). Close the
// Writer to end its timer; it closes neither file.
func NewWriter(spool *os.File, doorbell io.Writer) *Writer {
	return newWriter(spoolFile{file: spool, ahead: &roomAhead{file: spool, least: spoolAhead}}, doorbell)
}

func newWriter(file spoolFile, doorbell io.Writer) *Writer {
	w := &Writer{
		doorbell: doorbell,
		file:     file,
		timer:    time.NewTimer(time.Hour),

		flushAfter: provision.FlushAfter,
		stopped:    make(chan struct{}),
	}
	stop := make(chan struct{})
	w.stop = sync.OnceFunc(func() { close(stop) })
	w.settled.L = &w.mu
	w.timer.Stop()
	go w.closeOnTime(stop)
	return w
}

// Stream returns the writer of one stream. All writers of a stream are one:
// a rune or a secret may be split over any of their writes.
func (w *Writer) Stream(name provision.Stream) io.Writer {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.streams {
		if s.name == name {
			return s
		}
	}
	s := &stream{writer: w, name: name, masked: w.secrets.Stream()}
	w.streams = append(w.streams, s)
	return s
}

// System writes a line of Tendril's own.
func (w *Writer) System(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.bell()
	_ = w.settle() // kept in w.file.err
	if !w.closed && !w.ended {
		_ = w.system(fmt.Sprintf(format, args...)) // kept in w.file.err
	}
}

func (w *Writer) system(line string) error {
	text := []byte(strings.TrimRight(w.secrets.Text(line), "\n") + "\n")
	now := time.Now()
	if w.limit.epilogue() {
		_, err := w.limit.tail.append(provision.System, now, text)
		return err
	}
	err := w.put(provision.System, text, now)
	if err != nil {
		w.file.lose(err)
	}
	if w.limit != nil && w.limit.begun {
		// The tail is to read as a whole, and to end with what was said last.
		_, _ = w.limit.tail.append(provision.System, now, text) // it is in the spool as well
	}
	return err
}

// Mask hides the given values in all that is written later; see
// redact.Secrets.Add.
func (w *Writer) Mask(values ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.bell()
	_ = w.settle() // kept in w.file.err; it was printed before
	w.secrets.Add(values...)
}

// MaskString returns a text that is complete as the log would show it.
func (w *Writer) MaskString(text string) string { return w.secrets.Text(text) }

// Pieces returns a redact.Pieces that writes lines to out, a stream of the
// Writer, with the name before each.
func (w *Writer) Pieces(name string, out io.Writer) *redact.Pieces {
	return redact.NewPieces(&w.secrets, name, out)
}

// Close writes what is held, closes the chunk and waits until the disk has it
// all. It returns the first error the spool met since the Writer was made. The
// spool itself stays open.
func (w *Writer) Close() error {
	err := w.end()
	w.stop()
	<-w.stopped
	return err
}

func (w *Writer) end() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.bell()
	_ = w.settle() // kept in w.file.err
	if !w.closed {
		w.closed = true
		w.flush()
		w.closeChunk()
		w.file.sync()
		if w.limit != nil && w.limit.begun {
			w.limit.tail.sync(&w.file)
		}
	}
	return w.file.err
}

// Watched says whether people watch the log: chunks are closed sooner then.
func (w *Writer) Watched(is bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.flushAfter
	if w.flushAfter = provision.FlushAfter; is {
		w.flushAfter = provision.FlushWatched
	}
	if w.open && w.flushAfter < before {
		w.due = w.due.Add(w.flushAfter - before)
		w.look(w.due)
	}
}

// Sync waits until the disk has what is in the spool.
func (w *Writer) Sync() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.file.file.Sync(); err != nil {
		return fmt.Errorf("sync the spool: %w", err)
	}
	return nil
}

// flush writes what the streams hold: nothing more comes that could complete it.
// Nothing is gathered.
func (w *Writer) flush() {
	for _, s := range w.streams {
		if _, err := w.append(s.name, s.masked.Flush()); err != nil {
			w.file.lose(err)
		}
	}
}

// bell rings after an append that leaves something to deliver.
func (w *Writer) bell() {
	if w.ring && w.doorbell != nil {
		_, _ = w.doorbell.Write([]byte{0}) // a hint; the agent looks by itself as well
	}
	w.ring = false
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
}

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

// append writes what a stream prints, clean and masked, and returns how much of
// it was written. What was not is for the caller to try again or to give up.
func (w *Writer) append(name provision.Stream, text []byte) (done int, err error) {
	for done < len(text) {
		var n int
		if w.limit != nil && w.limit.reached() {
			n, err = w.beyond(name, text[done:])
		} else {
			n, err = w.putChunk(name, text[done:], time.Now())
		}
		if done += n; err != nil {
			return done, err
		}
	}
	return done, nil
}

// put writes clean, masked text to the spool.
func (w *Writer) put(name provision.Stream, text []byte, now time.Time) error {
	for len(text) > 0 {
		n, err := w.putChunk(name, text, now)
		if err != nil {
			return err
		}
		text = text[n:]
	}
	return nil
}

// putChunk writes as much of a text as goes into one chunk, and returns that.
func (w *Writer) putChunk(name provision.Stream, text []byte, now time.Time) (int, error) {
	if err := w.confess(); err != nil {
		return 0, err
	}
	if w.open && w.of != name {
		w.open = false // the number of the record to come says so
		w.ring = true
	}
	chunk, size := w.chunk, w.size
	if !w.open {
		chunk, size = w.chunk+1, 0
	}
	n, full := cut(text, size)
	end := full || !w.open && now.Sub(w.lastText) >= w.flushAfter
	w.line = appendText(w.line[:0], chunk, name, now, text[:n], end)
	if err := w.file.append(w.line, name == provision.System); err != nil {
		return 0, err
	}
	if !w.open && !end {
		w.due = now.Add(w.flushAfter)
		w.look(w.due)
	}
	if w.limit != nil {
		w.limit.passed(name, text[:n], w.line)
	}
	w.chunk, w.of, w.size, w.open = chunk, name, size+n, !end
	w.ring = w.ring || end
	w.lastText = now
	return n, nil
}

// confess says, once the spool can be written again, that lines are missing.
func (w *Writer) confess() error {
	if !w.file.lost || w.limit.epilogue() {
		return nil
	}
	line := "Lines are missing here: " + w.file.err.Error() + "\n"
	w.line = appendText(w.line[:0], w.chunk+1, provision.System, time.Now(), []byte(line), true)
	if err := w.file.append(w.line, true); err != nil {
		return err
	}
	w.file.lost = false
	w.chunk++
	w.open = false
	return nil
}

// WaitForRoom lets streams that meet a full disk wait for room: Write returns
// when there is some, so a process that prints into it waits as well, and no
// line is lost; and so with updates that are large, and with whatever comes
// after gathered text that waits (see Gather). After most, or when stop is
// closed, the wait is over and text is lost. gaveUp hears once of the first text
// that is, whatever kept it from being written; it must not call the Writer.
// Call WaitForRoom before anything is written.
func (w *Writer) WaitForRoom(most time.Duration, stop <-chan struct{}, gaveUp func(error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.room = room{most: most, stop: stop, gaveUp: gaveUp}
}

// waitForRoom lets others have the Writer for a while. It reports false when
// the wait is over: it has been long enough, the run is to stop, or text was
// given up before.
func (w *Writer) waitForRoom(began time.Time) bool {
	if w.room.already || time.Since(began) >= w.room.most {
		return false
	}
	w.mu.Unlock()
	look := time.NewTimer(lookForRoom)
	stopped := false
	select {
	case <-w.room.stop:
		stopped = true
	case <-look.C:
	}
	look.Stop()
	w.mu.Lock()
	return !stopped && !w.closed && !w.ended
}

// giveUp notes that text, or an update, is lost. What comes after it is tried
// once each, without waiting.
func (w *Writer) giveUp(err error) {
	w.file.lose(err)
	if w.room.already {
		return
	}
	w.room.already = true
	if w.room.gaveUp != nil {
		w.room.gaveUp(err)
	}
}

// Gather lets text that follows other text of its stream within a millisecond
// wait that long for more, and writes what has come as one record. A process
// that floods its output is handed over line by line: to write each to the file
// takes several times as long as all else that is done with it. A line that
// comes by itself is in the file when Write returns, as without Gather. What is
// gathered stands before all that is said after its Write returned, by whomever:
// a SYSTEM line, an update or text of another stream waits while it waits for
// room. Call it before anything is written.
func (w *Writer) Gather() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gather = true
}

// settle writes what is gathered, so that it stands before what the caller has
// to say: when it returns, nothing is. The caller has the mutex; others may have
// had it while what is gathered waited for room, but whoever writes or speaks
// waits here then, no longer than that.
func (w *Writer) settle() error {
	for w.settling {
		w.settled.Wait()
	}
	s := w.gatherer
	if s == nil {
		return nil
	}
	w.gatherer, w.settling = nil, true
	defer func() { // also after a panic: the final report is still to come
		w.settling = false
		w.settled.Broadcast()
	}()
	p := s.gathered
	s.gathered = p[:0] // nobody gathers meanwhile
	_, err := s.write(p)
	return err
}

// closeOnTime closes chunks that nothing else closed, and shows samples that are
// due. It is the Writer's own goroutine: Close ends it and waits for it.
func (w *Writer) closeOnTime(stop <-chan struct{}) {
	defer close(w.stopped)
	defer w.timer.Stop()
	for {
		select {
		case <-stop:
			return
		case <-w.timer.C:
			w.closeDue()
		}
	}
}

// look makes closeOnTime look at a time, or before.
func (w *Writer) look(at time.Time) {
	if w.looking.IsZero() || at.Before(w.looking) {
		w.looking = at
		w.timer.Reset(time.Until(at))
	}
}

func (w *Writer) closeDue() {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.bell()
	w.looking = time.Time{}
	_ = w.settle() // kept in w.file.err
	now := time.Now()
	switch {
	case !w.open:
	case now.Before(w.due):
		w.look(w.due)
	default:
		w.closeChunk()
	}
	if l := w.limit; l == nil || !l.recent.pending() || w.closed || w.ended {
		return // after the end least of all: what follows a result undoes it
	}
	if now.Before(w.limit.pace.next) {
		w.look(w.limit.pace.next)
		return
	}
	_ = w.sample(now) // the tail has the text
}

// closeChunk writes that the open chunk is complete.
func (w *Writer) closeChunk() {
	if !w.open {
		return
	}
	w.line = appendClose(w.line[:0], w.chunk)
	if w.file.append(w.line, false) == nil { // else the next record closes it, or the end of the file
		w.ring = true
	}
	w.open = false
}

// Update appends a report in its place among the lines. With a final status
// the text still held goes before it; otherwise the possible start of a secret
// stays held, for half of it must not become readable because a report came
// in between. A detail larger than the database takes is not written: the error
// is then a *TooLargeError.
func (w *Writer) Update(report provision.Report) error {
	_, err := w.update(report, false)
	return err
}

// UpdateAck is Update with a question: the agent answers on the control pipe
// with the number returned once the database has accepted or refused the
// report. The caller waits for that answer.
func (w *Writer) UpdateAck(report provision.Report) (int64, error) {
	return w.update(report, true)
}

// update appends a report; its error may be a *TooLargeError.
func (w *Writer) update(report provision.Report, ack bool) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.bell()
	_ = w.settle() // kept in w.file.err
	if w.closed || w.ended {
		return 0, os.ErrClosed
	}
	report.Detail = w.secrets.Detail(report.Detail)
	if err := fits(report.Detail); err != nil {
		return 0, err
	}
	report.Detail.Number, report.Detail.SetAside = 0, "" // for who delivers to give
	if report.Status.EndsRun() {
		w.flush()
	}
	_ = w.confess() // the report may fit where the line did not
	if err := w.putUpdate(ack, report); err != nil {
		w.giveUp(err)
		return 0, err
	}
	w.updates++
	w.ended = report.Status.EndsRun()
	w.open = false // an update closes the chunk before it
	w.ring = true
	return w.updates, nil
}

// putUpdate writes the next update to the spool.
func (w *Writer) putUpdate(ack bool, report provision.Report) error {
	for began := time.Now(); ; {
		record, err := appendUpdate(nil, w.updates+1, ack, began, report) // another may have come in between
		if err != nil {
			return fmt.Errorf("encode report: %w", err)
		}
		vital := report.Status.EndsRun() || len(record) <= maxVital
		if err = w.file.append(record, vital); err == nil {
			return nil
		}
		if vital || !full(err) || !w.waitForRoom(began) {
			return err
		}
	}
}

// room is what a Writer does on a full disk.
type room struct {
	most    time.Duration
	stop    <-chan struct{}
	gaveUp  func(error)
	already bool // it gave up
}

// lookForRoom is how often a stream that waits for room tries again.
const lookForRoom = 250 * time.Millisecond

// TooLargeError says that a report was not written because the database would
// not take it. The Writer is none the worse for it: a shorter one may follow.
type TooLargeError struct {
	Bytes int // the report's detail, as the database measures it
	Limit int // provision.MaxDetail
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("report of %d bytes is larger than the database takes (%d)", e.Bytes, e.Limit)
}

// maxVital is how large an update may be, in bytes, for which the room that is
// kept may be used: there must be enough for the end. A larger one waits for room
// as text does.
const maxVital = 32 << 10

// fits returns a *TooLargeError for a detail that would be too large with the
// number which it gets when it is delivered.
func fits(d provision.Detail) error {
	d.Number = math.MaxInt64
	encoded, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	if size := jsonbSize(encoded); size > provision.MaxDetail {
		return &TooLargeError{Bytes: size, Limit: provision.MaxDetail}
	}
	return nil
}

// jsonbSize returns at most how large JSON is as the database measures it:
// jsonb is printed with a space after each comma and colon.
func jsonbSize(encoded []byte) int {
	return len(encoded) + bytes.Count(encoded, []byte(",")) + bytes.Count(encoded, []byte(":"))
}
