package spool

import (
	"errors"
	"io"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// outOfRoom returns a Writer that waits a minute for room, or for stop, with a
// line in its spool and another gathered when the disk became full. There is
// room on it for what is vital, as if some had been set aside.
func outOfRoom(t *testing.T, stop <-chan struct{}, gaveUp func(error)) (w *Writer, roomAgain func(), records func() []wire) {
	t.Helper()
	spool := newSpool(t)
	room := &vitalRoom{}
	w = newWriter(spoolFile{file: spool, ahead: room}, nil)
	w.Gather()
	w.WaitForRoom(time.Minute, stop, gaveUp)
	write(t, w, provision.Stdout, "1\n")
	write(t, w, provision.Stdout, "2\n")
	setFull := func(full bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		room.full = full
	}
	setFull(true)
	return w, func() { setFull(false) }, func() []wire { return spooled(t, spool) }
}

// vitalRoom is a disk on which there is room for vital records alone.
type vitalRoom struct{ full bool }

func (r *vitalRoom) keep(int) error {
	if r.full {
		return syscall.ENOSPC
	}
	return nil
}

func (*vitalRoom) wrote(int) {}

// later are the ways to say something after what is gathered.
var later = map[string]struct {
	say  func(*Writer) error
	want string // in the spool, of text "1" and "2"
}{
	"a system line":  {func(w *Writer) error { w.System("3"); return nil }, `:SYSTEM"3\n"`},
	"an update":      {func(w *Writer) error { return w.Update(processing(provision.StagePlan)) }, "#1"},
	"a question":     {func(w *Writer) error { _, err := w.UpdateAck(processing(provision.StageApply)); return err }, "#1?"},
	"the end":        {func(w *Writer) error { return w.Update(ended(provision.Success)) }, "#1"},
	"another stream": {func(w *Writer) error { _, err := io.WriteString(w.Stream(provision.Stderr), "3\n"); return err }, `:STDERR"3\n"`},
	"nothing":        {(*Writer).Close, ""},
}

// On a full disk, what is said after gathered text waits with it: no vital record
// overtakes it by the room set aside, and the end of the log comes after it.
func TestGatheredWaitsForRoomBeforeWhatIsSaidLater(t *testing.T) {
	t.Parallel()
	for name, tt := range later {
		for when, settling := range map[string]time.Duration{"being gathered": 0, "being settled": 2 * gatherFor} {
			t.Run(name+" while "+when, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w, roomAgain, records := outOfRoom(t, nil, func(err error) { t.Errorf("gave up: %v", err) })
					time.Sleep(settling)
					began := time.Now()
					time.AfterFunc(20*time.Second, roomAgain)
					if err := tt.say(w); err != nil || time.Since(began) < 20*time.Second {
						t.Errorf("said after %s, %v, want after the wait for room", time.Since(began), err)
					}
					closeWriter(t, w)
					const waited = "The disk of the agent's data directory was full: the run waited 20s for room."
					got, said := "", 0
					for _, r := range records() {
						if r.Text == waited+"\n" {
							said++
							continue
						}
						if r.Text != "" || r.Update != 0 {
							r.Chunk, r.End = 0, false
							got += shape([]wire{r}) + " "
						}
					}
					want := `0:STDOUT"1\n" 0:STDOUT"2\n" `
					if tt.want != "" {
						if tt.want[0] == ':' {
							want += "0"
						}
						want += tt.want + " "
					}
					if got != want || said != 1 {
						t.Errorf("the spool is %s, which says %d times that the run waited, want %s, once", got, said, want)
					}
				})
			})
		}
	}
}

// That wait is as long as any: until a run is stopped, or has waited long enough.
// What was gathered is lost then, and the log says so.
func TestGatheredGivesUpWaitingForRoom(t *testing.T) {
	t.Parallel()
	for name, tt := range later {
		for how, stopAfter := range map[string]time.Duration{"in time": time.Hour, "when stopped": 5 * time.Second} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					stop := make(chan struct{})
					gaveUp := 0
					w, _, records := outOfRoom(t, stop, func(error) { gaveUp++ })
					stopping := time.AfterFunc(stopAfter, func() { close(stop) })
					defer stopping.Stop()
					began := time.Now()
					err := tt.say(w)
					if took, want := time.Since(began), min(stopAfter, time.Minute); took != want {
						t.Errorf("it took %s, want %s", took, want)
					}
					if vital := tt.want != "" && name != "another stream"; vital != (err == nil) {
						t.Errorf("said with %v, want an error: %t", err, !vital)
					}
					again := time.Now()
					for range 2 { // nothing is gathered any more: who writes is to hear of it
						if _, err := io.WriteString(w.Stream(provision.Stderr), "4\n"); err == nil || time.Since(again) > 0 {
							t.Errorf("Write() afterwards = %v after %s, want an error at once", err, time.Since(again))
						}
					}
					if err := w.Close(); !full(err) || gaveUp != 1 || time.Since(began) > time.Minute {
						t.Errorf("Close() = %v after %s, told %d times that it gave up; want that the disk is full, once", err, time.Since(began), gaveUp)
					}
					if text := textOf(records(), provision.Stdout); text != "1\n" {
						t.Errorf("the spool has %q, want what there was room for", text)
					}
				})
			})
		}
	}
}

// defect is a file that a Writer cannot write to without a panic.
type defect struct{ *disk }

func (defect) Write([]byte) (int, error) { panic("defect") }

// A panic while gathered text is written does not keep the end from being told.
func TestGatherPanic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		spool := newSpool(t)
		d := &disk{File: spool, room: -1}
		w := newWriter(spoolFile{file: d}, nil)
		w.Gather()
		write(t, w, provision.Stdout, "1\n")
		write(t, w, provision.Stdout, "lost\n")
		w.file.file = defect{d}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("System() did not panic")
				}
			}()
			w.System("2")
		}()
		w.file.file = d
		said := make(chan error)
		go func() { said <- errors.Join(w.Update(ended(provision.Failed)), w.Close()) }()
		select {
		case err := <-said:
			if err != nil {
				t.Errorf("the end could not be told: %v", err)
			}
		case <-time.After(time.Hour):
			t.Fatal("the end is waited for for ever")
		}
		if got, want := shape(spooled(t, spool)), `1:STDOUT"1\n"! #1`; got != want {
			t.Errorf("the spool is %s, want %s", got, want)
		}
	})
}
