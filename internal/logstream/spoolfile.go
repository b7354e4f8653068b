package logstream

import (
	"fmt"
	"io"
)

// spoolFile appends records to a spool and knows what became of them.
type spoolFile struct {
	file interface {
		io.Writer
		Sync() error
	}
	torn bool  // the file may not end with a newline
	err  error // the first failure; never forgotten
	lost bool  // text was lost since, and the log does not say so yet
	line []byte
}

// append writes one record, which ends with a newline, by one write. After a
// record that was cut short the line is ended first, so that what is left of
// it is a line no one can read.
func (f *spoolFile) append(record []byte) error {
	out := record
	if f.torn {
		f.line = append(append(f.line[:0], '\n'), record...)
		out = f.line
	}
	n, err := f.file.Write(out)
	if err == nil {
		f.torn = false
		return nil
	}
	err = fmt.Errorf("write the spool: %w", err)
	if f.err == nil {
		f.err = err
	}
	f.torn, f.lost = true, true // an empty line too many does no harm
	if n == len(out)-1 {
		return nil // all of the record is there but its newline: it counts
	}
	return err
}

func (f *spoolFile) sync() {
	if err := f.file.Sync(); err != nil && f.err == nil {
		f.err = fmt.Errorf("sync the spool: %w", err)
	}
}
