package spool

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// spoolFile appends records to a spool and knows what became of them.
type spoolFile struct {
	file interface {
		io.Writer
		Sync() error
	}
	ahead allocator // may be nil
	torn  bool      // the file may not end with a newline
	err   error     // the first failure; never forgotten
	lost  bool      // text was lost since, and the log does not say so yet
	line  []byte
}

// allocator is room on the disk that is kept for a file.
type allocator interface {
	// keep fails when so many bytes more would be written into the room that is
	// kept for vital records.
	keep(bytes int) error
	// wrote says how much was written.
	wrote(bytes int)
}

// append writes one record, which ends with a newline, by one write. After a
// record that was cut short the line is ended first, so that what is left of
// it is a line no one can read. A vital record may use the room that is kept
// behind the end of the file; others find the disk full before.
// What an error means is for the caller to say; see lose.
func (f *spoolFile) append(record []byte, vital bool) error {
	if !vital && f.ahead != nil {
		if err := f.ahead.keep(len(record)); err != nil {
			return fmt.Errorf("write the spool: %w", err)
		}
	}
	missing, err := f.write(record)
	if err == nil || missing == 1 && full(err) {
		return nil // all of the record is there, or all but its newline: it counts
	}
	return fmt.Errorf("write the spool: %w", err)
}

// write returns how many bytes at the end of the record are not in the file.
func (f *spoolFile) write(record []byte) (missing int, err error) {
	out := record
	if f.torn {
		f.line = append(append(f.line[:0], '\n'), record...)
		out = f.line
	}
	n, err := f.file.Write(out)
	if f.ahead != nil {
		f.ahead.wrote(n)
	}
	f.torn = err != nil // an empty line too many does no harm
	return len(out) - n, err
}

// roomAhead keeps blocks of the disk for a file, behind its end: nobody else
// gets them when the disk fills up, not even for a moment, as they would if room
// was freed elsewhere first. The file's size does not show them.
type roomAhead struct {
	file  *os.File
	least int64 // bytes
	left  int64 // known to be allocated
}

// spoolAhead is the room behind the end of a spool, in bytes, for the end of the
// story, which is told on a full disk. maxStep is the most that is allocated at
// once beside it: as much as the file has, so that a short log takes little.
const (
	spoolAhead = 256 << 10
	maxStep    = 256 << 10
)

// Reserve keeps room behind the end of a spool for what a Writer says on a full
// disk: SYSTEM lines, and reports of up to 32 KiB.
func Reserve(file *os.File) error { return (&roomAhead{file: file, least: spoolAhead}).keep(0) }

func (r *roomAhead) keep(bytes int) error {
	needed := int64(bytes) + r.least
	if needed <= r.left {
		return nil
	}
	info, err := r.file.Stat()
	if err != nil {
		return err
	}
	if r.allocate(info.Size(), needed+min(info.Size(), maxStep)) == nil {
		return nil
	}
	return r.allocate(info.Size(), needed)
}

func (r *roomAhead) wrote(bytes int) { r.left -= int64(bytes) }

// allocate makes the room behind the end of the file that large. Where the file
// system cannot do it there is none, and no error.
func (r *roomAhead) allocate(end, bytes int64) error {
	var err error = unix.EINTR
	for errors.Is(err, unix.EINTR) {
		err = unix.Fallocate(int(r.file.Fd()), unix.FALLOC_FL_KEEP_SIZE, end, bytes)
	}
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
		return os.NewSyscallError("fallocate", err)
	}
	r.left = bytes
	return nil
}

// lose notes that text was lost.
func (f *spoolFile) lose(err error) {
	if f.err == nil {
		f.err = err
	}
	f.lost = true
}

// full reports whether an error says that the disk, or the user's part of it, is.
func full(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

func (f *spoolFile) sync() {
	if err := f.file.Sync(); err != nil && f.err == nil {
		f.err = fmt.Errorf("sync the spool: %w", err)
	}
}

// Resume returns a Writer that goes on with a dead child's spool, so that the
// agent can say what became of the run. The files must be open for reading as
// well as for appending. The Writer begins a chunk of its own: the child's last
// one may have been delivered already. So may the tail, if there is one: then
// SYSTEM lines go to its end.
func Resume(spool *os.File, tail Tail) (*Writer, error) {
	r := NewReader(spool)
	r.Final()
	for {
		_, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("resume: %w", err)
		}
	}
	torn, err := endsTorn(spool, r.offset)
	if err != nil {
		return nil, fmt.Errorf("resume: %w", err)
	}
	end, err := resumeTail(tail)
	if err != nil {
		return nil, fmt.Errorf("resume: %w", err)
	}
	w := newWriter(spoolFile{file: spool, ahead: &roomAhead{file: spool, least: spoolAhead}, torn: torn}, nil)
	w.limit = &limit{total: math.MaxInt64, begun: end.head.Segment > 0, dead: true, tail: end}
	w.chunk, w.updates = r.order.chunk, r.order.update
	return w, nil
}

// endsTorn reports whether a spool of the given size lacks its last newline.
func endsTorn(spool io.ReaderAt, size int64) (bool, error) {
	if size == 0 {
		return false, nil
	}
	last := make([]byte, 1)
	if _, err := spool.ReadAt(last, size-1); err != nil {
		return false, fmt.Errorf("read the spool: %w", err)
	}
	return last[0] != '\n', nil
}
