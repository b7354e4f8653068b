package logstream

import (
	"errors"
	"fmt"
	"io"
	"syscall"
)

// spoolFile appends records to a spool and knows what became of them.
type spoolFile struct {
	file interface {
		io.Writer
		Sync() error
	}
	spare spareRoom // may be nil
	torn  bool      // the file may not end with a newline
	err   error     // the first failure; never forgotten
	lost  bool      // text was lost since, and the log does not say so yet
	line  []byte
}

// spareRoom is room on the disk that is set aside for what matters most.
type spareRoom interface {
	// yield gives it up and reports whether there was any.
	yield() bool
	// restore sets it aside again where it was given up. Until it can be, the
	// disk has no room for anything else.
	restore() error
}

// append writes one record, which ends with a newline, by one write. After a
// record that was cut short the line is ended first, so that what is left of
// it is a line no one can read. For a vital record on a full disk the spare
// room is given up, and until there is as much again others find the disk full.
// What an error means is for the caller to say; see lose.
func (f *spoolFile) append(record []byte, vital bool) error {
	if !vital && f.spare != nil {
		if err := f.spare.restore(); err != nil {
			return fmt.Errorf("write the spool: %w", err)
		}
	}
	missing, err := f.write(record)
	if vital && missing > 1 && full(err) && f.spare != nil && f.spare.yield() {
		missing, err = f.write(record)
	}
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
	f.torn = err != nil // an empty line too many does no harm
	return len(out) - n, err
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
