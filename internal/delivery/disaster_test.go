package delivery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/spool"
)

// TestDisaster: a child prints on three streams and is killed at any moment,
// so that its spool is torn at any byte; the agent delivers meanwhile, loses
// replies, is killed and started again; what it finds at last it resumes. The
// database then has what was written up to the tear, once, in order.
func TestDisaster(t *testing.T) {
	t.Parallel()
	for range 80 {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) {
			disaster(t, seed, rand.New(rand.NewPCG(seed, 0)))
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func disaster(t *testing.T, seed uint64, r *rand.Rand) {
	file := newSpool(t)
	q := &memQueue{fault: unreliable(rand.New(rand.NewPCG(seed, 1)))}
	claim := uuid.New()
	w := spool.NewWriter(file, nil)

	// Some of it is delivered while it is written: none of that can be torn.
	written, delivered := disturb(t, r, w, file, q, claim)

	size, err := file.Seek(0, 2)
	if err != nil {
		t.Fatal(err)
	}
	tear := delivered + r.Int64N(size-delivered+1)
	if err := os.Truncate(file.Name(), tear); err != nil {
		t.Fatal(err)
	}
	before := readIndependently(t, file)

	for range r.IntN(4) { // agents that find the child alive, or dead, and are killed
		done := closed()
		if r.IntN(2) == 0 {
			done = nil
		}
		kill(t, r, NewPump(q, claim, file, PumpOptions{Resume: true}), nil, done)
	}
	resumed, err := spool.Resume(file, spool.Tail{})
	if err != nil {
		t.Fatal(err)
	}
	resumed.System("the child died")
	if err := resumed.Update(ended(provision.Failed)); err != nil {
		t.Fatal(err)
	}
	if err := resumed.Close(); err != nil {
		t.Fatal(err)
	}
	for range r.IntN(3) {
		kill(t, r, NewPump(q, claim, file, PumpOptions{Resume: true}), nil, closed())
	}
	d, err := NewPump(q, claim, file, PumpOptions{Resume: true}).Run(t.Context(), nil, closed())
	if err != nil || d.Result == nil {
		t.Fatalf("Run() = %+v, %v", d, err)
	}

	if got, want := q.text(), before+"the child died\n"; got != want {
		t.Errorf("stored %d bytes, want %d\n%.300q\n%.300q", len(got), len(want), got, want)
	}
	whole := written.String()
	if !strings.HasPrefix(whole, before) {
		t.Errorf("what was spooled up to the tear is no prefix of what was written")
	}
	if got := int64(len(q.chunks)); d.NextChunk != got+1 {
		t.Errorf("NextChunk = %d with %d chunks, want one more", d.NextChunk, got)
	}
	if last := q.order[len(q.order)-1]; last != "report FAILED" {
		t.Errorf("the last thing stored is %s, want report FAILED", last)
	}
}

// disturb writes to the spool and delivers it, by pumps that are killed and
// started again. It returns all that was written and how much of the file was
// read.
func disturb(t *testing.T, r *rand.Rand, w *spool.Writer, file *os.File, q *memQueue, claim uuid.UUID) (written *bytes.Buffer, read int64) {
	written = &bytes.Buffer{}
	streams := []provision.Stream{provision.Stdout, provision.Stderr, provision.System}
	for i := range 1 + r.IntN(60) {
		s := streams[r.IntN(len(streams))]
		text := strings.Repeat(fmt.Sprintf("%s %d é\n", s, i), 1+r.IntN(3))
		if r.IntN(10) == 0 {
			text = strings.Repeat(text, 800)
		}
		if s == provision.System {
			w.System("%s", text)
			text = strings.TrimRight(text, "\n") + "\n"
		} else {
			write(t, w, s, text)
		}
		written.WriteString(text)
		switch r.IntN(8) {
		case 0:
			if err := w.Update(processing(provision.StagePlan)); err != nil {
				t.Fatal(err)
			}
		case 1:
			if _, err := w.UpdateAck(processing(provision.StageApply)); err != nil {
				t.Fatal(err)
			}
		case 2:
			time.Sleep(time.Duration(r.Int64N(int64(time.Second))))
			synctest.Wait()
		case 3:
			p := NewPump(q, claim, file, PumpOptions{Resume: read > 0})
			kill(t, r, p, nil, nil)
			read = max(read, p.reader.Offset())
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return written, read
}

// kill runs a pump and ends it at a random moment.
func kill(t *testing.T, r *rand.Rand, p *Pump, wake, done <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if _, err := p.Run(ctx, wake, done); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Run() = %v", err)
		}
	}()
	select {
	case <-ended:
	case <-time.After(time.Duration(r.Int64N(int64(2 * time.Second)))):
		cancel()
		<-ended
	}
}

// record is one of text.
type record struct {
	Text string `json:"d"`
}

// readIndependently returns the text of a spool's whole records, by
// encoding/json alone.
func readIndependently(t *testing.T, file *os.File) string {
	t.Helper()
	content, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for line := range bytes.Lines(content) {
		// A record that lacks only its newline is whole, unless it is torn at a
		// brace inside of it.
		var r record
		if json.Unmarshal(line, &r) == nil {
			text.WriteString(r.Text)
		}
	}
	return text.String()
}
