package agent

import (
	"os"
	"strings"
	"sync"
	"time"
)

// tailSize is how much of what a child says on its own stdout and stderr is
// kept, in bytes: a Go panic fits, a flood does not.
const tailSize = 8 << 10

// tail keeps the end of what comes out of a pipe, twice as much as is shown: what
// is cut off is then found whole by who hides it.
type tail struct {
	pipe    *os.File
	reading sync.WaitGroup
	kept    []byte
}

func newTail(pipe *os.File) *tail {
	t := &tail{pipe: pipe}
	t.reading.Go(t.read)
	return t
}

func (t *tail) read() {
	buf := make([]byte, 4<<10)
	for {
		n, err := t.pipe.Read(buf)
		t.kept = append(t.kept, buf[:n]...)
		if more := len(t.kept) - 2*tailSize; more > 0 {
			t.kept = append(t.kept[:0], t.kept[more:]...)
		}
		if err != nil {
			return
		}
	}
}

// end returns what was kept. What still holds the other end is not waited for.
func (t *tail) end() string {
	_ = t.pipe.SetReadDeadline(time.Now().Add(tailPatience))
	t.reading.Wait()
	_ = t.pipe.Close()
	return strings.TrimSpace(strings.ToValidUTF8(string(t.kept), "?"))
}

// tailPatience is for what is in the pipe when the child has ended.
const tailPatience = 100 * time.Millisecond
