package wiretest

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
)

// postgres is the protocol of PostgreSQL, unencrypted.
type postgres struct{ calls *calls }

// The requests that a client may begin with instead of a start-up message.
const (
	cancelRequest = 80877102
	sslRequest    = 80877103
	gssRequest    = 80877104
)

// opening reads the first message of a connection, which has no kind, and says
// no to encryption before it. A request to cancel is followed by nothing.
func (postgres) opening(r *bufio.Reader, client net.Conn) (out []byte, last bool, err error) {
	for {
		whole, err := readOpening(r)
		if err != nil || len(whole) < 8 {
			return nil, false, fmt.Errorf("wiretest: a connection begins with %d bytes: %w", len(whole), err)
		}
		switch code := binary.BigEndian.Uint32(whole[4:8]); code {
		case sslRequest, gssRequest:
			if _, err := client.Write([]byte{'N'}); err != nil {
				return nil, false, err
			}
		default:
			return whole, code == cancelRequest, nil
		}
	}
}

func (p postgres) request(r *bufio.Reader) (message, error) {
	f, err := readFrame(r)
	if err != nil {
		return message{}, err
	}
	call, err := p.calls.read(f)
	return message{bytes: f, call: call, midway: f.midway()}, err
}

func (postgres) reply(r *bufio.Reader) (out []byte, done bool, err error) {
	f, err := readFrame(r)
	if err != nil {
		return nil, false, err
	}
	return f, f.kind() == 'Z', nil
}
