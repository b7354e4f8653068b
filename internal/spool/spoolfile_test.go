package spool

import (
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/tendril-run/tendril/internal/provision"
)

// disk is a file on a disk that has room for some bytes; a negative room is
// no limit.
type disk struct {
	*os.File
	room int
}

func (d *disk) Write(p []byte) (int, error) {
	if d.room < 0 || len(p) <= d.room {
		n, err := d.File.Write(p)
		d.room -= n
		return n, err
	}
	n, err := d.File.Write(p[:d.room])
	d.room = 0
	return n, errors.Join(err, &os.PathError{Op: "write", Path: "spool", Err: syscall.ENOSPC})
}

func TestWriterOnAFullDisk(t *testing.T) {
	t.Parallel()
	w := newWriter(spoolFile{file: &disk{File: newSpool(t)}}, nil)
	_, err := io.WriteString(w.Stream(provision.Stdout), "a\n")
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("Write() = %v, want %v", err, syscall.ENOSPC)
	}
	w.System("still there?")
	if _, again := io.WriteString(w.Stream(provision.Stderr), "b\n"); !errors.Is(again, syscall.ENOSPC) {
		t.Errorf("second Write() = %v, want the first error again", again)
	}
	if err := w.Update(ended(provision.Failed)); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Update() = %v, want %v", err, syscall.ENOSPC)
	}
	if err := w.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Close() = %v, want the first error", err)
	}
}

// TestWriterAfterAFullDisk cuts a record short after any number of its bytes
// and makes room again: the run's end is still told, nothing readable is
// doubled, and the log says that lines are missing.
func TestWriterAfterAFullDisk(t *testing.T) {
	t.Parallel()
	const missing = `:SYSTEM"Lines are missing here: write the spool: write spool: no space left on device\n"! `
	length := len(`{"c":2,"s":"STDOUT","at":"2000-01-01T00:00:00Z","d":"b\n"}` + "\n")
	for room := range length {
		synctest.Test(t, func(t *testing.T) {
			spool := newSpool(t)
			d := &disk{File: spool, room: -1}
			w := newWriter(spoolFile{file: d}, nil)
			write(t, w, provision.Stdout, "a\n")
			d.room = room
			_, err := io.WriteString(w.Stream(provision.Stdout), "b\n")
			whole := room == length-1 // but for its newline
			if (err == nil) != whole {
				t.Errorf("Write() with room for %d of %d bytes = %v", room, length, err)
			}
			if _, err := io.WriteString(w.Stream(provision.Stdout), "c\n"); err == nil {
				t.Error("Write() on a full disk = nil, want an error")
			}
			d.room = -1
			w.System("the run was ended")
			if err := w.Update(ended(provision.Failed)); err != nil {
				t.Errorf("Update() = %v, want nil", err)
			}
			if err := w.Close(); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("Close() = %v, want %v", err, syscall.ENOSPC)
			}
			want := `1:STDOUT"a\n"! 2` + missing + `3:SYSTEM"the run was ended\n" #1`
			if whole {
				want = `1:STDOUT"a\n"! 2:STDOUT"b\n" 3` + missing + `4:SYSTEM"the run was ended\n" #1`
			}
			if got := shape(spooled(t, spool)); got != want {
				t.Errorf("spool = %s, want %s", got, want)
			}
			if got := shape(read(t, spool)); got != want {
				t.Errorf("Reader reads %s, want %s", got, want)
			}
		})
	}
}
