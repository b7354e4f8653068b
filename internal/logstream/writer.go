package logstream

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// Writer writes a spool: what a run prints, masked and in numbered chunks, and
// what it reports, in the order in which it was called. All of its methods are
// safe for concurrent use. Nothing is kept in memory but the beginning of a
// rune, what may be the start of a secret, and what is gathered (see Gather).
//
// After a final report it takes nothing more, as if it were closed: a report
// that anything follows does not count (see Pump.Run).
//
// When the spool cannot be written (a full disk), the text at hand is lost.
// Writes to streams return that error from then on, so that the run can be
// ended; System and the updates are still tried, with the room that the Tail
// has set aside, and the first that succeeds is preceded by a SYSTEM line which
// says that lines are missing.
type Writer struct {
	doorbell io.Writer

	mu      sync.Mutex
	file    spoolFile
	secrets secrets
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

	timer   *time.Timer
	looking time.Time // when the timer goes off; zero if it does not
	stop    func()
	stopped chan struct{}

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
	return newWriter(spoolFile{file: spool}, doorbell)
}

func newWriter(file spoolFile, doorbell io.Writer) *Writer {
	w := &Writer{
		doorbell: doorbell,
		file:     file,
		timer:    time.NewTimer(time.Hour),
		stopped:  make(chan struct{}),
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
	s := &stream{writer: w, name: name, masker: masker{find: w.secrets.patterns()}}
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
	text := []byte(strings.TrimRight(w.secrets.maskString(line), "\n") + "\n")
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

// Mask hides the given values in all that is written later, and each line of
// minLine bytes or more of a value that has several. Every value is hidden
// wherever it occurs, so the caller leaves out what is too short or too common
// to be a secret; empty ones and white space are ignored.
func (w *Writer) Mask(values ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.bell()
	_ = w.settle() // kept in w.file.err; it was printed before
	if !w.secrets.add(values...) {
		return
	}
	for _, s := range w.streams {
		s.masker.use(w.secrets.patterns())
	}
}

// MaskString returns a text that is complete as the log would show it.
func (w *Writer) MaskString(text string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.secrets.maskString(text)
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
		_, err := w.append(s.name, s.masker.mask(s.cleaner.flush()))
		if _, flushed := w.append(s.name, s.masker.flush()); err == nil {
			err = flushed
		}
		if err != nil {
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
