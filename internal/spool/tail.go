package spool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// Tail is the two files that keep the end of a log which is beyond its limit.
// They are written in turn: when one is full the other is emptied and taken, so
// the two hold the last eighth to quarter of the limit, also when the process
// that writes them is killed. Nobody copies that to the spool: package delivery sends
// it from here, before the final report or else at the end of the spool, once
// the child is dead and nothing can change it any more.
//
// Each file begins with a segmentHead and goes on with text records. A nil file
// is one that is not there.
type Tail [2]*os.File

// Used reports whether the files hold a part of a log.
func (t Tail) Used() bool {
	for i := range t {
		if _, _, used := t.head(i); used {
			return true
		}
	}
	return false
}

// segmentHead is the first line of a tail file. Segment n is in file n%2.
type segmentHead struct {
	Segment int64 `json:"segment"` // from 1
	// What was printed beyond the limit before this segment.
	Lines int64 `json:"lines"`
	Bytes int64 `json:"bytes"`
}

// tailWriter writes a Tail.
type tailWriter struct {
	files  Tail
	out    [2]spoolFile
	most   int64 // how much a segment takes, by weight
	head   segmentHead
	size   int64 // of the segment, by weight
	whole  bool  // its last text ended its line
	number int64 // what its records are numbered: text of another number is another chunk
	lines  int64 // printed beyond the limit until now
	bytes  int64
	line   []byte
}

// tailAhead is the room kept behind the end of each file of a Tail, in bytes: the
// agent adds to a dead child's tail what became of the run.
const tailAhead = 64 << 10

func newTailWriter(files Tail, most int64) *tailWriter {
	t := &tailWriter{files: files, most: most}
	for i, file := range files {
		t.out[i] = spoolFile{file: file, ahead: &roomAhead{file: file, least: tailAhead}}
	}
	return t
}

// resumeTail returns the writer of a dead child's tail, which begins a chunk of
// its own: the child's last one may have been delivered already.
func resumeTail(files Tail) (*tailWriter, error) {
	t := newTailWriter(files, math.MaxInt64)
	for i, file := range files {
		head, _, used := files.head(i)
		if !used || head.Segment <= t.head.Segment {
			continue
		}
		info, err := file.Stat()
		if err != nil {
			return nil, fmt.Errorf("read the log's tail: %w", err)
		}
		if t.out[i].torn, err = endsTorn(file, info.Size()); err != nil {
			return nil, fmt.Errorf("read the log's tail: %w", err)
		}
		t.head = head
	}
	t.number = t.head.Segment + 1
	return t, nil
}

// append writes clean, masked text as of a time, and returns how much of it.
func (t *tailWriter) append(stream provision.Stream, at time.Time, text []byte) (done int, err error) {
	for len(text) > 0 {
		if t.head.Segment == 0 || t.size >= t.most && (t.whole || t.size >= t.most+lineSlack) {
			if err := t.turn(); err != nil {
				return done, err
			}
		}
		n, _ := cut(text, 0)
		t.line = appendText(t.line[:0], t.number, stream, at, text[:n], false)
		if err := t.out[t.head.Segment%2].append(t.line, stream == provision.System); err != nil {
			return done, err
		}
		t.size += weight(n, len(t.line))
		if stream != provision.System {
			t.lines += lineCount(text[:n])
			t.bytes += int64(n)
			t.whole = text[n-1] == '\n'
		}
		text, done = text[n:], done+n
	}
	return done, nil
}

// turn empties the file that is not being written and goes on there.
func (t *tailWriter) turn() error {
	next := segmentHead{Segment: t.head.Segment + 1, Lines: t.lines, Bytes: t.bytes}
	line, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encode the head of the log's tail: %w", err)
	}
	i := next.Segment % 2
	if err := t.files[i].Truncate(0); err != nil {
		return fmt.Errorf("empty the log's tail: %w", err)
	}
	t.out[i].torn = false
	t.out[i].ahead = &roomAhead{file: t.files[i], least: tailAhead} // the room went with the rest
	if err := t.out[i].append(append(line, '\n'), false); err != nil {
		return err // not begun, so it is begun again when there is room
	}
	t.head, t.number, t.size = next, next.Segment, 0
	return nil
}

// sync waits until the disk has it all, and leaves an error with the spool.
func (t *tailWriter) sync(spool *spoolFile) {
	for i := range t.out {
		t.out[i].sync()
		if spool.err == nil {
			spool.err = t.out[i].err
		}
	}
}

// head reads the first line of a file, if the file is in use, and returns how
// long that is.
func (t Tail) head(i int) (head segmentHead, length int64, used bool) {
	start := make([]byte, 256)
	n, _ := t[i].ReadAt(start, 0) // what cannot be read is not used
	end := bytes.IndexByte(start[:n], '\n') + 1
	if end == 0 || json.Unmarshal(start[:end], &head) != nil {
		return segmentHead{}, 0, false
	}
	return head, int64(end), head.Segment > 0 && head.Segment%2 == int64(i) && head.Lines >= 0 && head.Bytes >= 0
}
