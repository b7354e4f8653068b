package spool

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// Doorbell is the child's end of the pipe by which it wakes the agent.
type Doorbell struct{ raw syscall.RawConn }

// NewDoorbell makes the write end of a pipe a Doorbell. It sets the pipe
// non-blocking: a full pipe has woken the agent already, and an agent that
// does not read must not stop the run.
func NewDoorbell(pipe *os.File) (*Doorbell, error) {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return nil, err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = syscall.SetNonblock(int(fd), true) }); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, os.NewSyscallError("set doorbell non-blocking", failed)
	}
	return &Doorbell{raw: raw}, nil
}

// Write rings. It never waits, and a pipe that is full counts as rung.
func (d *Doorbell) Write(p []byte) (int, error) {
	var failed error
	err := d.raw.Write(func(fd uintptr) bool {
		_, failed = syscall.Write(int(fd), p)
		return true // done, whatever came of it: never wait for room
	})
	if errors.Is(failed, syscall.EAGAIN) {
		failed = nil
	}
	if err = errors.Join(err, failed); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Listen turns the bytes from a doorbell into wakes for who delivers, several into
// one, until the pipe ends; wake should have room for one. The caller gives it
// a goroutine of its own, which it ends by closing the pipe.
func Listen(pipe io.Reader, wake chan<- struct{}) {
	buf := make([]byte, 4<<10)
	for {
		n, err := pipe.Read(buf)
		if n > 0 {
			select {
			case wake <- struct{}{}:
			default:
			}
		}
		if err != nil {
			return
		}
	}
}
