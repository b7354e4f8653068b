package spool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// smallLimit has a tail that a test fills many times over.
const smallLimit = 64 << 10

// parts returns what a log shows before it reaches its limit, and its tail.
func parts(log []provision.LogChunk) (head, tail string) {
	rest := text(log)
	head, rest, _ = strings.Cut(rest, "This log has grown")
	for _, mark := range []string{" left out of this log, but", "Nothing is left out"} {
		if _, after, ok := strings.Cut(rest, mark); ok {
			_, tail, _ = strings.Cut(after, "once more.\n")
		}
	}
	return head, tail
}

// TestTailIsTornAtItsHead: a kill between emptying a file and writing its head.
func TestTailIsTornAtItsHead(t *testing.T) {
	t.Parallel()
	w, spool, tail := newLimited(t, smallLimit)
	for n := range 2000 {
		write(t, w, provision.Stdout, fmt.Sprintf("line %d %s\n", n, strings.Repeat("x", 88)))
	}
	closeWriter(t, w)
	_, whole := parts(stored(t, spool, tail))
	current := tail[w.limit.tail.head.Segment%2]
	for size := range int64(len(`{"segment":1`)) {
		if err := os.Truncate(current.Name(), size); err != nil {
			t.Fatal(err)
		}
		_, left := parts(stored(t, spool, tail))
		if !strings.HasPrefix(whole, left) || len(left) < smallLimit/8-1000 {
			t.Errorf("with %d bytes of one file the tail has %d bytes, want the other file", size, len(left))
		}
	}
}

// TestTailTurnsWhenThereIsRoomAgain: a disk is full just when the other file is
// to be begun. What is printed when there is room must be found again.
func TestTailTurnsWhenThereIsRoomAgain(t *testing.T) {
	t.Parallel()
	tail := newTail(t)
	w := newTailWriter(tail, 1000)
	line := []byte(strings.Repeat("x", 99) + "\n")
	for range 10 {
		if _, err := w.append(provision.Stdout, time.Now(), line); err != nil {
			t.Fatal(err)
		}
	}
	next := (w.head.Segment + 1) % 2
	small := &disk{File: tail[next], room: 7}
	w.out[next].file = small
	last := []byte("the last line\n")
	for range 3 { // it is tried again and again
		if n, err := w.append(provision.Stderr, time.Now(), last); n != 0 || !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("append() on a full disk = %d, %v, want 0, %v", n, err, syscall.ENOSPC)
		}
	}
	small.room = -1
	if n, err := w.append(provision.Stderr, time.Now(), last); n != len(last) || err != nil {
		t.Fatalf("append() = %d, %v, want %d, nil", n, err, len(last))
	}
	var got strings.Builder
	for r := NewTailReader(tail, 0); ; {
		record, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if record.Stream != provision.System {
			got.Write(record.Text)
		}
	}
	if want := strings.Repeat(string(line), 10) + string(last); got.String() != want {
		t.Errorf("the tail holds %d bytes, want %d", got.Len(), len(want))
	}
}
