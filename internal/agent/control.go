package agent

import (
	"os"
	"sync"

	"github.com/tendril-run/tendril/internal/job"
)

// mostMessages is how many messages wait for a child that does not read. It
// waits for each answer before it asks again, so one that has not read this
// many waits for none of them.
const mostMessages = 64

// control is the agent's end of a child's control pipe. Sending never waits:
// a child that is stuck must not hold up the agent. While it is open the child
// knows that the agent lives.
type control struct {
	pipe     *os.File
	messages chan any
	closed   chan struct{}
	writing  sync.WaitGroup
}

// newControl starts to write to the pipe, the job first.
func newControl(pipe *os.File, j job.Job) *control {
	c := &control{pipe: pipe, messages: make(chan any, mostMessages), closed: make(chan struct{})}
	c.messages <- j
	c.writing.Go(c.write)
	return c
}

// send puts a message on its way, or drops it when too many wait.
func (c *control) send(message job.Control) {
	select {
	case c.messages <- message:
	default:
	}
}

func (c *control) write() {
	for {
		select {
		case <-c.closed:
			return
		case message := <-c.messages:
			if err := job.Write(c.pipe, message); err != nil {
				return // the child has ended, or close came in between
			}
		}
	}
}

// close ends the pipe, also under a write that waits for the child.
func (c *control) close() {
	close(c.closed)
	_ = c.pipe.Close()
	c.writing.Wait()
}
