package spool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// bell counts rings.
type bell struct{ rung atomic.Int64 }

func (b *bell) Write(p []byte) (int, error) { b.rung.Add(1); return len(p), nil }

func TestWriterClosesChunksInTime(t *testing.T) {
	t.Parallel()
	const (
		out = provision.Stdout
		err = provision.Stderr
	)
	for name, tt := range map[string]struct {
		do   func(t *testing.T, w *Writer)
		want string
	}{
		"the first line at once": {func(t *testing.T, w *Writer) {
			write(t, w, out, "a\n")
		}, `1:STDOUT"a\n"!`},
		"what follows it waits": {func(t *testing.T, w *Writer) {
			write(t, w, out, "a\n")
			write(t, w, out, "b\n")
			time.Sleep(499 * time.Millisecond)
			write(t, w, out, "c\n")
		}, `1:STDOUT"a\n"! 2:STDOUT"b\n" 2:STDOUT"c\n"`},
		"500 ms from its first byte": {func(t *testing.T, w *Writer) {
			write(t, w, out, "a\n")
			time.Sleep(100 * time.Millisecond)
			write(t, w, out, "b\n")
			time.Sleep(499 * time.Millisecond)
			write(t, w, out, "c\n")
			time.Sleep(2 * time.Millisecond)
		}, `1:STDOUT"a\n"! 2:STDOUT"b\n" 2:STDOUT"c\n" 2:!`},
		"each chunk has its own 500 ms": {func(t *testing.T, w *Writer) {
			write(t, w, out, "a\n")
			write(t, w, out, "b\n")
			time.Sleep(400 * time.Millisecond)
			write(t, w, err, "c\n")
			time.Sleep(499 * time.Millisecond)
			write(t, w, err, "d\n")
			time.Sleep(2 * time.Millisecond)
		}, `1:STDOUT"a\n"! 2:STDOUT"b\n" 3:STDERR"c\n" 3:STDERR"d\n" 3:!`},
		"at once after silence": {func(t *testing.T, w *Writer) {
			write(t, w, out, "a\n")
			time.Sleep(500 * time.Millisecond)
			write(t, w, out, "b\n")
			time.Sleep(499 * time.Millisecond)
			write(t, w, out, "c\n")
			time.Sleep(time.Hour)
			write(t, w, err, "d\n")
		}, `1:STDOUT"a\n"! 2:STDOUT"b\n"! 3:STDOUT"c\n" 3:! 4:STDERR"d\n"!`},
		"before an update": {func(t *testing.T, w *Writer) {
			write(t, w, out, "a\n")
			write(t, w, out, "b\n")
			if err := w.Update(processing(provision.StagePlan)); err != nil {
				t.Error(err)
			}
			write(t, w, out, "c\n")
			if n, err := w.UpdateAck(processing(provision.StageApply)); n != 2 || err != nil {
				t.Errorf("UpdateAck() = %d, %v, want 2, nil", n, err)
			}
			time.Sleep(time.Second)
		}, `1:STDOUT"a\n"! 2:STDOUT"b\n" #1 3:STDOUT"c\n" #2?`},
		"system lines are a stream": {func(t *testing.T, w *Writer) {
			w.System("Tendril %d\n", 1)
			w.System("more")
			write(t, w, out, "a\n")
			w.System("end")
		}, `1:SYSTEM"Tendril 1\n"! 2:SYSTEM"more\n" 3:STDOUT"a\n" 4:SYSTEM"end\n"`},
		"by closing": {func(t *testing.T, w *Writer) {
			w.Mask("hunter2")
			write(t, w, out, "a\n")
			write(t, w, out, "hunt\xe2")
			write(t, w, err, "c")
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		}, `1:STDOUT"a\n"! 2:STDERR"c" 3:STDOUT"hunt` + "\ufffd" + `" 3:!`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				spool := newSpool(t)
				w := NewWriter(spool, nil)
				tt.do(t, w)
				synctest.Wait()
				got := shape(spooled(t, spool))
				closeWriter(t, w)
				if got != tt.want {
					t.Errorf("spool = %s, want %s", got, tt.want)
				}
			})
		})
	}
}

func TestWriterStampsTheFirstByte(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		spool := newSpool(t)
		w := NewWriter(spool, nil)
		defer closeWriter(t, w)
		time.Sleep(1234 * time.Microsecond)
		want := time.Now()
		write(t, w, provision.Stdout, "a\n")
		if got := spooled(t, spool)[0].At; !got.Equal(want) || got.Location() != time.UTC {
			t.Errorf("at = %v, want %v", got, want.UTC())
		}
	})
}

func TestWriterRingsWhenThereIsSomethingToDeliver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b bell
		w := NewWriter(newSpool(t), &b)
		rings := func(want int64, when string) {
			t.Helper()
			synctest.Wait()
			if got := b.rung.Load(); got != want {
				t.Errorf("rung %d times, want %d: %s", got, want, when)
			}
		}
		write(t, w, provision.Stdout, "a\n")
		rings(1, "the first line")
		write(t, w, provision.Stdout, "b\n")
		write(t, w, provision.Stdout, "c\n")
		rings(1, "an open chunk is not delivered")
		time.Sleep(provision.FlushAfter)
		rings(2, "its time is over")
		time.Sleep(time.Hour)
		rings(2, "an idle run")
		write(t, w, provision.Stdout, strings.Repeat("x\n", 20_000))
		rings(3, "many chunks by one write")
		write(t, w, provision.Stderr, "e\n")
		rings(4, "another stream")
		if err := w.Update(processing(provision.StagePlan)); err != nil {
			t.Error(err)
		}
		rings(5, "an update")
		closeWriter(t, w)
		rings(5, "nothing open")
	})
}

// What people watch is delivered sooner, from the moment at which they begin to.
func TestWatchedChunksCloseSooner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b bell
		w := NewWriter(newSpool(t), &b)
		write(t, w, provision.Stdout, "a\n") // after a silence, so at once
		rings := int64(1)
		closes := func(after time.Duration, when string) {
			t.Helper()
			time.Sleep(after - time.Millisecond)
			synctest.Wait()
			if got := b.rung.Load(); got != rings {
				t.Errorf("%s: the chunk is closed within %s", when, after-time.Millisecond)
			}
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if rings++; b.rung.Load() != rings {
				t.Errorf("%s: the chunk is not closed after %s", when, after)
			}
		}
		write(t, w, provision.Stdout, "b\n")
		time.Sleep(100 * time.Millisecond)
		w.Watched(true)
		closes(provision.FlushWatched-100*time.Millisecond, "people come")
		write(t, w, provision.Stdout, "c\n") // after a silence that is long enough now
		rings++
		write(t, w, provision.Stdout, "d\n")
		closes(provision.FlushWatched, "people watch")
		w.Watched(false)
		write(t, w, provision.Stdout, "e\n")
		closes(provision.FlushAfter, "people have left")
		closeWriter(t, w)
	})
}

func TestWriterWritesABlockAsOneRecordUpToTheChunk(t *testing.T) {
	t.Parallel()
	spool := newSpool(t)
	w := NewWriter(spool, nil)
	text := strings.Repeat("a line of the log, not a long one\n", 5000)
	write(t, w, provision.Stdout, text)
	closeWriter(t, w)
	records := spooled(t, spool)
	if got := textOf(records, provision.Stdout); got != text {
		t.Errorf("the spool has %d bytes of text, want the %d written", len(got), len(text))
	}
	if most := len(text)/provision.ChunkTarget + 5; len(records) > most {
		t.Errorf("%d records for %d bytes, want at most %d", len(records), len(text), most)
	}
	for _, r := range records {
		if r.Text != "" && !strings.HasSuffix(r.Text, "\n") && r.End {
			t.Errorf("chunk %d ends within a line", r.Chunk)
		}
	}
}

func TestWriterJoinsWhatIsSplitOverWrites(t *testing.T) {
	t.Parallel()
	spool := newSpool(t)
	w := NewWriter(spool, nil)
	w.Mask("hunter2")
	text := "é hunter2 😀 \x00 hunter2\n"
	for i := range len(text) {
		write(t, w, provision.Stdout, text[i:i+1])
		write(t, w, provision.Stderr, text[i:i+1])
	}
	closeWriter(t, w)
	for _, s := range []provision.Stream{provision.Stdout, provision.Stderr} {
		if got, want := textOf(spooled(t, spool), s), "é *** 😀 \ufffd ***\n"; got != want {
			t.Errorf("%s = %q, want %q", s, got, want)
		}
	}
}

func TestWriterMasksEverywhere(t *testing.T) {
	t.Parallel()
	spool := newSpool(t)
	w := NewWriter(spool, nil)
	stdout := w.Stream(provision.Stdout) // made before the secret is known
	w.Mask("hunter2", "s<33")
	if _, err := io.WriteString(stdout, "pw hunter2\n"); err != nil {
		t.Fatal(err)
	}
	w.System("login with %s", "hunter2")
	report := ended(provision.Failed)
	report.Detail = provision.Detail{
		ErrorMessage: "no hunter2\x00",
		Events:       []provision.Event{{Message: "hunter2", Address: `a["hunter2"]`}},
		Plan:         &provision.PlanSummary{Resources: []provision.PlannedChange{{Address: "x.hunter2"}}},
		Resources:    []provision.Resource{{Address: "y.hunter2", ExternalID: "s<33"}},
		Outputs:      map[string]provision.Output{"o": {Value: []byte(`"nul \u0000 \\u0000"`)}},
	}
	if err := w.Update(report); err != nil {
		t.Fatal(err)
	}
	closeWriter(t, w)
	content, err := os.ReadFile(spool.Name())
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"hunter2", "s<33", `s\u003c33`, ` \u0000`} {
		if strings.Contains(string(content), bad) {
			t.Errorf("the spool has %q: %s", bad, content)
		}
	}
	if !strings.Contains(string(content), `"nul \ufffd \\u0000"`) {
		t.Errorf("outputs are spoilt: %s", content)
	}
	if report.Detail.Events[0].Message != "hunter2" || report.Detail.Plan.Resources[0].Address != "x.hunter2" {
		t.Error("Update() changed its argument")
	}
	if got, want := w.MaskString("is it hunter2?"), "is it ***?"; got != want {
		t.Errorf("MaskString() = %q, want %q", got, want)
	}
}

// TestWriterMasksAcrossPieces: what one event shows of a secret the next ones do
// not complete.
func TestWriterMasksAcrossPieces(t *testing.T) {
	t.Parallel()
	spool := newSpool(t)
	w := NewWriter(spool, nil)
	w.Gather()
	w.Mask("correct horse", "hunter2")
	p := w.Pieces("a", w.Stream(provision.Stdout))
	for _, text := range []string{"pw=hun", "ter2, and hunter2", "it is correct", "horse"} {
		p.Piece(text)
	}
	p.Close()
	closeWriter(t, w)
	if got, want := textOf(spooled(t, spool), provision.Stdout), "a: pw=***\na: , and ***\na: it is ***\n"; got != want {
		t.Errorf("the spool has %q, want %q", got, want)
	}
}

func TestWriterHoldsHalfASecretOverAnUpdateButNotOverTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		spool := newSpool(t)
		w := NewWriter(spool, nil)
		w.Mask("hunter2")
		write(t, w, provision.Stdout, "a hunt")
		time.Sleep(time.Minute)
		if err := w.Update(processing(provision.StagePlan)); err != nil {
			t.Error(err)
		}
		write(t, w, provision.Stdout, "er2 hunt")
		if err := w.Update(ended(provision.Success)); err != nil {
			t.Error(err)
		}
		closeWriter(t, w)
		want := `1:STDOUT"a "! #1 2:STDOUT"*** "! 3:STDOUT"hunt" #2`
		if got := shape(spooled(t, spool)); got != want {
			t.Errorf("spool = %s, want %s", got, want)
		}
	})
}

func TestWriterRefusesAReportThatIsTooLarge(t *testing.T) {
	t.Parallel()
	spool := newSpool(t)
	w := NewWriter(spool, nil)
	report := ended(provision.Failed)
	report.Detail.ErrorMessage = strings.Repeat("x", provision.MaxDetail)
	wantTooLarge := func(what string) {
		t.Helper()
		err := w.Update(report)
		if e, ok := errors.AsType[*TooLargeError](err); !ok || e.Bytes <= e.Limit || e.Limit != provision.MaxDetail {
			t.Errorf("Update() with %s = %v, want a *TooLargeError", what, err)
		}
	}
	wantTooLarge("a long message")
	report.Detail.ErrorMessage = ""
	report.Detail.Events = make([]provision.Event, 24_000) // 1 MiB only with jsonb's spaces
	wantTooLarge("many small parts")
	report.Detail.Events = nil
	report.Detail.ErrorMessage = strings.Repeat("x", provision.MaxDetail-len(`{"error_message": ""}`))
	wantTooLarge("no room for its number")
	report.Detail.ErrorMessage = strings.Repeat("x", provision.MaxDetail-100)
	if n, err := w.UpdateAck(report); n != 1 || err != nil {
		t.Errorf("UpdateAck() = %d, %v, want 1, nil", n, err)
	}
	closeWriter(t, w)
	if r, err := NewReader(spool).Next(); r.Update != 1 || err != nil {
		t.Errorf("Next() = update %d, %v, want 1, nil", r.Update, err)
	}
}

// TestWriterWritesNothingAfterTheEnd: what came late would undo the result.
func TestWriterWritesNothingAfterTheEnd(t *testing.T) {
	t.Parallel()
	for _, end := range []provision.Status{provision.Success, provision.AwaitingApproval} {
		writesNothingAfter(t, end)
	}
}

func writesNothingAfter(t *testing.T, end provision.Status) {
	t.Helper()
	spool := newSpool(t)
	w := NewWriter(spool, nil)
	if err := w.Update(ended(end)); err != nil {
		t.Fatal(err)
	}
	w.System("too late")
	if _, err := w.Stream(provision.Stdout).Write([]byte("x")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Write() after the end = %v, want %v", err, os.ErrClosed)
	}
	if err := w.Update(ended(provision.Failed)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Update() after the end = %v, want %v", err, os.ErrClosed)
	}
	closeWriter(t, w)
	if got, want := shape(spooled(t, spool)), "#1"; got != want {
		t.Errorf("spool = %s, want %s", got, want)
	}
}

func TestWriterIsClosedOnce(t *testing.T) {
	t.Parallel()
	w := NewWriter(newSpool(t), nil)
	stdout := w.Stream(provision.Stdout)
	closeWriter(t, w)
	closeWriter(t, w)
	w.System("too late")
	if _, err := stdout.Write([]byte("x")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Write() after Close() = %v, want %v", err, os.ErrClosed)
	}
	if err := w.Update(ended(provision.Success)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Update() after Close() = %v, want %v", err, os.ErrClosed)
	}
}

func TestWriterKeepsTheOrderOfConcurrentWriters(t *testing.T) {
	t.Parallel()
	spool := newSpool(t)
	w := NewWriter(spool, nil)
	var wg sync.WaitGroup
	streams := []provision.Stream{provision.Stdout, provision.Stderr, provision.System}
	want := map[provision.Stream]string{}
	for _, s := range streams {
		var b strings.Builder
		for i := range 300 {
			fmt.Fprintf(&b, "%s %d\n", s, i)
		}
		text := b.String()
		want[s] = text
		wg.Go(func() {
			for line := range strings.Lines(text) {
				if s == provision.System {
					w.System("%s", line)
				} else if _, err := io.WriteString(w.Stream(s), line); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	closeWriter(t, w)
	records := spooled(t, spool)
	for _, s := range streams {
		if got := textOf(records, s); got != want[s] {
			t.Errorf("%s has %d bytes, want the %d written, in order", s, len(got), len(want[s]))
		}
	}
	last := int64(0)
	for _, r := range records {
		if r.Chunk != last && r.Chunk != last+1 {
			t.Errorf("chunk %d follows chunk %d", r.Chunk, last)
		}
		last = r.Chunk
	}
}
