package logstream

import (
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// A stream that meets a full disk waits for room: every line is there, in
// order, and the log says that the run waited.
func TestStreamWaitsForRoom(t *testing.T) {
	t.Parallel()
	length := len(`{"c":2,"s":"STDOUT","at":"2000-01-01T00:00:00Z","d":"b\n"}` + "\n")
	for room := range length {
		synctest.Test(t, func(t *testing.T) {
			spool := newSpool(t)
			d := &disk{File: spool, room: -1}
			w := newWriter(spoolFile{file: d}, nil)
			w.WaitForRoom(time.Minute, nil, func(err error) { t.Errorf("gave up: %v", err) })
			write(t, w, provision.Stdout, "a\n")
			d.room = room
			wrote := make(chan error)
			go func() {
				_, err := io.WriteString(w.Stream(provision.Stdout), "b\n")
				wrote <- err
			}()
			time.Sleep(20 * time.Second) // of the bubble
			w.mu.Lock()
			d.room = -1
			w.mu.Unlock()
			if err := <-wrote; err != nil {
				t.Errorf("Write() = %v, want nil once there is room", err)
			}
			write(t, w, provision.Stdout, "c\n")
			if err := w.Close(); err != nil {
				t.Errorf("Close() = %v, want nil: nothing was lost", err)
			}
			text := spooledText(t, spool)
			whole := room == length-1 // but for its newline: there was no need to wait
			waited := strings.Contains(text, "the run waited 20s for room.\n")
			if plain := strings.ReplaceAll(text, "The disk of the agent's data directory was full: the run waited 20s for room.\n", ""); plain != "a\nb\nc\n" || waited == whole {
				t.Errorf("room for %d of %d bytes: the spool holds %q, want each line once, and that the run waited", room, length, text)
			}
		})
	}
}

// spooledText is the text of a spool.
func spooledText(t *testing.T, spool interface{ io.ReaderAt }) string {
	t.Helper()
	r := NewReader(spool)
	r.Final()
	var text strings.Builder
	for {
		record, err := r.Next()
		if errors.Is(err, io.EOF) {
			return text.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		text.Write(record.Text)
	}
}

// The wait ends when it has been long enough, and when the run is stopped.
func TestStreamGivesUpWaitingForRoom(t *testing.T) {
	t.Parallel()
	for name, stopAfter := range map[string]time.Duration{"in time": time.Minute, "when stopped": 5 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWriter(spoolFile{file: &disk{File: newSpool(t)}}, nil)
				stop := make(chan struct{})
				var gaveUp []error
				w.WaitForRoom(10*time.Second, stop, func(err error) { gaveUp = append(gaveUp, err) })
				began := time.Now()
				time.AfterFunc(stopAfter, func() { close(stop) })
				_, err := io.WriteString(w.Stream(provision.Stdout), "a\n")
				if !errors.Is(err, syscall.ENOSPC) {
					t.Errorf("Write() = %v, want %v", err, syscall.ENOSPC)
				}
				if took, want := time.Since(began), min(stopAfter, 10*time.Second); took != want {
					t.Errorf("Write() waited %s, want %s", took, want)
				}
				if _, err := io.WriteString(w.Stream(provision.Stderr), "b\n"); err == nil || time.Since(began) > 10*time.Second {
					t.Errorf("Write() afterwards = %v after %s, want the error at once", err, time.Since(began))
				}
				if len(gaveUp) != 1 || !errors.Is(gaveUp[0], syscall.ENOSPC) {
					t.Errorf("told that it gave up: %v, want once", gaveUp)
				}
				if err := w.Close(); !errors.Is(err, syscall.ENOSPC) {
					t.Errorf("Close() = %v, want %v", err, syscall.ENOSPC)
				}
			})
		})
	}
}
