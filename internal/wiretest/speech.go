package wiretest

import (
	"bufio"
	"net"
)

// speech tells the messages of a protocol apart, on one connection. Its
// requests and its replies are read by two goroutines.
type speech interface {
	// opening reads what a client says before its first request; last says that
	// nothing follows.
	opening(r *bufio.Reader, client net.Conn) (out []byte, last bool, err error)
	// request reads a client's next message.
	request(r *bufio.Reader) (message, error)
	// reply reads a server's next message; done says that the request is done
	// and committed.
	reply(r *bufio.Reader) (out []byte, done bool, err error)
}

// message is what a client sends.
type message struct {
	bytes []byte
	call  Call // zero: none is made
	// midway says that more messages of the same request follow.
	midway bool
}
