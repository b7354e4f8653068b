package wiretest

import (
	"encoding/binary"
	"fmt"
	"io"
)

// frame is one message as it is on the wire: a kind, a length that counts
// itself, and a body.
type frame []byte

func (f frame) kind() byte   { return f[0] }
func (f frame) body() []byte { return f[5:] }

// midway says that more messages of the same request follow.
func (f frame) midway() bool {
	switch f.kind() {
	case 'P', 'B', 'D', 'E', 'C':
		return true
	}
	return false
}

// mostFrame is the largest message that is believed, in bytes.
const mostFrame = 64 << 20

// readFrame reads a message of an open session.
func readFrame(r io.Reader) (frame, error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	return readRest(r, head, head[1:])
}

// readRest reads what belongs to a head that ends with the length.
func readRest(r io.Reader, head, length []byte) (frame, error) {
	n := int64(binary.BigEndian.Uint32(length)) - 4
	if n < 0 || n > mostFrame {
		return nil, fmt.Errorf("wiretest: a message of %d bytes", n)
	}
	whole := append(head, make([]byte, n)...)
	_, err := io.ReadFull(r, whole[len(head):])
	return whole, err
}

// readOpening reads the first message of a connection, which has no kind.
func readOpening(r io.Reader) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	return readRest(r, head, head)
}
