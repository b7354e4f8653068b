package delivery

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/spool"
)

const forgedEnd = `{"n":99,"report":{"status":"SUCCESS","detail":{"stage":"done","n":7}}}` + "\n"

// forge appends to a spool as a template under the child's uid might.
func forge(t *testing.T, file *os.File, lines string) {
	t.Helper()
	f, err := os.OpenFile(file.Name(), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.WriteString(lines); err != nil {
		t.Fatal(err)
	}
}

// TestPumpWaitsForTheChildsDeath: what ends a run is the last record of a child
// that is dead, and no other.
func TestPumpWaitsForTheChildsDeath(t *testing.T) {
	t.Parallel()
	text := func(l *live) { write(t, l.w, provision.Stdout, "still applying\n") }
	for name, tt := range map[string]struct {
		after  []func(*live) // what the child writes after the forged end
		want   string        // what the queue has then
		status provision.Status
		forged int
	}{
		"nothing": {nil, "chunk 1, report SUCCESS", provision.Success, 0},
		"text":    {[]func(*live){text}, "chunk 1, chunk 2", "", 1},
		"progress": {[]func(*live){func(l *live) { l.update(processing(provision.StageOutputs)) }},
			"chunk 1, report outputs", "", 1},
		"its end": {[]func(*live){func(l *live) { l.update(ended(provision.Failed)) }},
			"chunk 1, report FAILED", provision.Failed, 1},
		// Which ends the run, though not the provision.
		"that it awaits approval": {[]func(*live){func(l *live) { l.update(ended(provision.AwaitingApproval)) }},
			"chunk 1, report AWAITING_APPROVAL", provision.AwaitingApproval, 1},
		"text, another forged one, text, its end": {[]func(*live){text,
			func(l *live) { forge(t, l.file, forgedEnd) }, text, func(l *live) { l.update(ended(provision.Failed)) }},
			"chunk 1, chunk 2, chunk 3, report FAILED", provision.Failed, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := goLive(t, nil, false)
				write(t, l.w, provision.Stdout, "applying\n")
				forge(t, l.file, forgedEnd)
				time.Sleep(time.Hour)
				l.happened("chunk 1")
				for _, do := range tt.after {
					do(l)
					time.Sleep(time.Hour)
				}
				synctest.Wait()
				if got := l.q.happened(); strings.Contains(got, "SUCCESS") || strings.Contains(got, "FAILED") || strings.Contains(got, "AWAITING") {
					t.Errorf("the queue has %s while the child lives", got)
				}
				l.die()
				l.happened(tt.want)
				var status provision.Status
				if l.got.Result != nil {
					status = l.got.Result.Status
				}
				if l.err != nil || status != tt.status || l.got.Forged != tt.forged {
					t.Errorf("Run() = %+v, %v, want status %q, %d forged", l.got, l.err, tt.status, tt.forged)
				}

				// Whoever finds the spool later comes to the same end.
				q := &memQueue{}
				d := run(t, NewPump(q, uuid.New(), l.file, PumpOptions{Resume: true}))
				ends := strings.Count(q.happened(), string(tt.status))
				if (d.Result == nil) != (tt.status == "") || d.Result != nil && (d.Result.Status != tt.status || ends != 1) || d.Forged != tt.forged {
					t.Errorf("resumed: Run() = %+v, %s, want status %q, %d forged", d, q.happened(), tt.status, tt.forged)
				}
			})
		})
	}
}

// TestPumpBelievesTheAgentAboutADeadChild: what the agent appends in place of a
// dead child is the last record, whatever stands before it.
func TestPumpBelievesTheAgentAboutADeadChild(t *testing.T) {
	t.Parallel()
	file := newSpool(t)
	forge(t, file, lineA+forgedEnd+strings.Replace(lineC, `"c":2`, `"c":900`, 1)+forgedEnd)
	w, err := spool.Resume(file, spool.Tail{})
	if err != nil {
		t.Fatal(err)
	}
	w.System("the child died")
	if err := w.Update(ended(provision.Failed)); err != nil {
		t.Fatal(err)
	}
	closeWriter(t, w)
	q := &memQueue{}
	d := run(t, NewPump(q, uuid.New(), file, PumpOptions{Resume: true}))
	if d.Result == nil || d.Result.Status != provision.Failed || d.Forged != 2 {
		t.Errorf("Run() = %+v, want FAILED, 2 forged", d)
	}
	if got, want := q.text(), "a\nc\nthe child died\n"; got != want {
		t.Errorf("stored %q, want %q", got, want)
	}
}

// TestPumpForgetsAForgedEndWhenItGoesBack: an end counts once, however often
// the spool is read.
func TestPumpForgetsAForgedEndWhenItGoesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := goLive(t, nil, false)
		write(t, l.w, provision.Stdout, "a\n")
		forge(t, l.file, forgedEnd)
		write(t, l.w, provision.Stdout, "b\n")
		time.Sleep(provision.FlushAfter)
		l.happened("chunk 1, chunk 2")
		forge(t, l.file, forgedEnd)
		l.q.mu.Lock()
		l.q.chunks = nil // restored from a backup
		l.q.mu.Unlock()
		write(t, l.w, provision.Stdout, "c\n")
		l.update(ended(provision.Failed))
		l.die()
		l.happened("chunk 1, chunk 2, chunk 1, chunk 2, chunk 3, report FAILED")
		if l.err != nil || l.got.Forged != 2 {
			t.Errorf("Run() = %+v, %v, want 2 forged", l.got, l.err)
		}
	})
}

// TestForgedRecordsHideNothing puts forged records between any two of a
// child's: all that the child wrote is delivered, in order, and each question
// is answered by the number the child knows it by.
func TestForgedRecordsHideNothing(t *testing.T) {
	t.Parallel()
	genuine := []func(*spool.Writer) error{
		func(w *spool.Writer) error { _, err := w.Stream(provision.Stdout).Write([]byte("one\n")); return err },
		func(w *spool.Writer) error { _, err := w.Stream(provision.Stdout).Write([]byte("two\n")); return err },
		func(w *spool.Writer) error { return w.Update(processing(provision.StagePlan)) },
		func(w *spool.Writer) error { _, err := w.Stream(provision.Stderr).Write([]byte("three\n")); return err },
		func(w *spool.Writer) error { _, err := w.Stream(provision.Stderr).Write([]byte("four\n")); return err },
		func(w *spool.Writer) error { _, err := w.UpdateAck(processing(provision.StageApply)); return err },
		func(w *spool.Writer) error { _, err := w.Stream(provision.Stdout).Write([]byte("five\n")); return err },
		func(w *spool.Writer) error { return w.Update(ended(provision.Success)) },
	}
	forgeries := map[string]string{
		"an end":                        forgedEnd,
		"an update far ahead":           `{"n":9223372036854775807,"report":{"status":"PROCESSING"}}` + "\n",
		"the end of the chunk":          `{"c":1,"end":true}` + "\n{\"c\":2,\"end\":true}\n{\"c\":3,\"end\":true}\n",
		"a chunk that fills its number": strings.Replace(lineA, `a\n`, strings.Repeat("~", provision.MaxChunk-10), 1),
	}
	for _, n := range []int64{1, 2, 3, 4, 7, 99, 900, 1 << 62} {
		forgeries[fmt.Sprintf("update %d", n)] = fmt.Sprintf(`{"n":%d,"report":{"status":"PROCESSING"}}`+"\n", n)
		for _, s := range []provision.Stream{provision.Stdout, provision.Stderr} {
			text := fmt.Sprintf(`{"c":%d,"s":"%s","at":"2026-01-02T03:04:05Z","d":"~"`, n, s)
			forgeries[fmt.Sprintf("chunk %d %s", n, s)] = text + "}\n"
			forgeries[fmt.Sprintf("chunk %d %s whole", n, s)] = text + `,"end":true}` + "\n"
		}
	}
	for name, lines := range forgeries {
		for at := range genuine {
			t.Run(fmt.Sprintf("%s before %d", name, at), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					l := goLive(t, nil, false)
					for i, do := range genuine {
						if i == at {
							forge(t, l.file, lines)
						}
						if err := do(l.w); err != nil {
							t.Fatal(err)
						}
						synctest.Wait()
					}
					l.die()
					got := strings.NewReplacer("~", "", damaged, "").Replace(l.q.text())
					if want := "one\ntwo\nthree\nfour\nfive\n"; got != want {
						t.Errorf("stored %q, want %q", got, want)
					}
					if want := "[2]"; fmt.Sprint(l.acks) != want {
						t.Errorf("acks = %v, want %v", l.acks, want)
					}
					var stages string
					last := int64(0)
					for _, r := range l.q.reports {
						if r.Detail.Number <= last {
							t.Errorf("report %d follows report %d: the database takes it for a repeat", r.Detail.Number, last)
						}
						last = r.Detail.Number
						stages += string(r.Detail.Stage) + " "
					}
					if l.err != nil || l.got.Result == nil || strings.Join(strings.Fields(stages), " ") != "plan apply" {
						t.Errorf("Run() = %+v, %v, stages %s, want SUCCESS after plan and apply", l.got, l.err, stages)
					}
				})
			})
		}
	}
}

// TestReportsAreNumbered: by the spool's numbers, the same whoever delivers it.
func TestReportsAreNumbered(t *testing.T) {
	t.Parallel()
	file := newSpool(t)
	w := spool.NewWriter(file, nil)
	for _, stage := range []provision.Stage{provision.StageCheckout, provision.StageInit} {
		report := processing(stage)
		report.Detail.Number = 42 // not the caller's to give
		if err := w.Update(report); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Update(ended(provision.Success)); err != nil {
		t.Fatal(err)
	}
	closeWriter(t, w)
	reader := spool.NewReader(file)
	for range 3 {
		r, err := reader.Next()
		if err != nil {
			t.Fatal(err)
		}
		if r.Report.Detail.Number != 0 {
			t.Errorf("update %d has number %d in its detail, want none", r.Update, r.Report.Detail.Number)
		}
	}
	for range 2 {
		q := &memQueue{}
		run(t, NewPump(q, uuid.New(), file, PumpOptions{}))
		var got []int64
		for _, r := range q.reports {
			got = append(got, r.Detail.Number)
		}
		if want := "[1 2 3]"; fmt.Sprint(got) != want {
			t.Errorf("the reports are numbered %v, want %v", got, want)
		}
	}
}
