package spool

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
	streamWaitsForRoom(t, "2000-01-01T00:00:00Z", func(*Writer) {})
}

// So does what is gathered, of which the Writer has said that it is written.
func TestGatheredWaitsForRoom(t *testing.T) {
	t.Parallel()
	streamWaitsForRoom(t, "2000-01-01T00:00:00.001Z", (*Writer).Gather)
}

// streamWaitsForRoom fills the disk at each byte of a record written at a time.
func streamWaitsForRoom(t *testing.T, at string, gather func(*Writer)) {
	t.Helper()
	length := len(`{"c":2,"s":"STDOUT","at":"` + at + `","d":"b\n"}` + "\n")
	for room := range length {
		synctest.Test(t, func(t *testing.T) {
			spool := newSpool(t)
			d := &disk{File: spool, room: -1}
			w := newWriter(spoolFile{file: d}, nil)
			gather(w)
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

// What is said while a stream waits takes the room set aside, and that does not
// become room for the stream: it waits on, and the end of the story fits.
func TestReservedRoomIsNotForWhatWaits(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t, "2M")
	spool, tail := openOn(t, dir, "spool"), Tail{openOn(t, dir, "tail0"), openOn(t, dir, "tail1")}
	if err := Reserve(spool); err != nil {
		t.Fatal(err)
	}
	w := NewWriter(spool, nil)
	w.Gather()
	w.Limit(64<<20, tail)
	w.WaitForRoom(3*lookForRoom, nil, nil)
	fill(t, dir)
	wrote := make(chan error)
	go func() {
		_, err := io.Copy(w.Stream(provision.Stdout), io.LimitReader(endless{}, 1<<20))
		wrote <- err
	}()
	for i := range 50 {
		w.System("said meanwhile %d", i)
	}
	if err := <-wrote; !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Copy() = %v, want %v", err, syscall.ENOSPC)
	}
	if err := w.Update(ended(provision.Failed)); err != nil {
		t.Errorf("Update() = %v, want room for it", err)
	}
	_ = w.Close() // ENOSPC again
	if text := spooledText(t, spool); strings.Count(text, "said meanwhile") != 50 || len(text) > 64<<10 {
		t.Errorf("the spool holds %d bytes of text, want what was said and next to nothing else", len(text))
	}
}

// A large update waits for room like text, and leaves the room set aside to the
// end of the story; without room it fails, and the run hears of it.
func TestLargeUpdateLeavesRoomForTheEnd(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t, "2M")
	spool, tail := openOn(t, dir, "spool"), Tail{openOn(t, dir, "tail0"), openOn(t, dir, "tail1")}
	if err := Reserve(spool); err != nil {
		t.Fatal(err)
	}
	w := NewWriter(spool, nil)
	w.Gather()
	w.Limit(64<<20, tail)
	gaveUp := 0
	w.WaitForRoom(2*lookForRoom, nil, func(error) { gaveUp++ })
	fill(t, dir)
	large := provision.Report{Status: provision.Processing, Detail: provision.Detail{Outputs: map[string]provision.Output{
		"x": {Value: []byte(`"` + strings.Repeat("a", 400<<10) + `"`)},
	}}}
	if err := w.Update(large); !errors.Is(err, syscall.ENOSPC) || gaveUp != 1 {
		t.Errorf("Update() = %v, told %d times that it gave up; want %v, once", err, gaveUp, syscall.ENOSPC)
	}
	w.System("why it ended")
	if err := w.Update(ended(provision.Failed)); err != nil {
		t.Errorf("Update() of the end = %v, want room for it", err)
	}
	_ = w.Close() // ENOSPC again
	if text := spooledText(t, spool); !strings.HasSuffix(text, "why it ended\n") {
		t.Errorf("the spool's text = %q, want why the run ended", text)
	}
}

// What comes after lost text is tried again, at once: an interrupted engine
// still says what it did.
func TestTextAfterLostTextIsTried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		spool := newSpool(t)
		d := &disk{File: spool}
		w := newWriter(spoolFile{file: d}, nil)
		w.WaitForRoom(time.Second, nil, nil)
		if _, err := io.WriteString(w.Stream(provision.Stdout), "lost\n"); err == nil {
			t.Fatal("Write() = nil, want an error")
		}
		began := time.Now()
		if _, err := io.WriteString(w.Stream(provision.Stdout), "lost too\n"); err == nil || time.Since(began) > 0 {
			t.Errorf("Write() = %v after %s, want an error at once", err, time.Since(began))
		}
		d.room = -1
		write(t, w, provision.Stdout, "kept\n")
		_ = w.Close() // the first error
		if text := spooledText(t, spool); !strings.HasSuffix(text, "no space left on device\nkept\n") || strings.Contains(text, "lost") {
			t.Errorf("the spool's text = %q, want that lines are missing, and what came when there was room", text)
		}
	})
}

// The agent may tell the end of a run whose log is beyond its limit on a full
// disk: what it makes room with must not be a part of the tail.
func TestDeliveredTailIsNotGivenUp(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t, "3M")
	spool, tail := openOn(t, dir, "spool"), Tail{openOn(t, dir, "tail0"), openOn(t, dir, "tail1")}
	w := NewWriter(spool, nil)
	w.Gather()
	w.Limit(leastLimit, tail)
	for range 12000 { // both segments are in use
		write(t, w, provision.Stdout, strings.Repeat("x", 99)+"\n")
	}
	_ = w.Close() // the child dies without a result
	before := text(stored(t, spool, tail))
	fill(t, dir)
	again, err := Resume(spool, tail)
	if err != nil {
		t.Fatal(err)
	}
	again.System("the agent says how it ended")
	_ = again.Close() // there is no room
	if log := text(stored(t, spool, tail)); !strings.HasPrefix(log, before) {
		t.Errorf("the files hold %d bytes of log, want the %d from before still", len(log), len(before))
	}
}
