package libvirt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
)

// What a message may have. libvirt's own limit is 32 MiB; its longest text is of 4 MiB.
const (
	maxMessage = 16 << 20
	maxString  = 4 << 20
	maxItems   = 20_000
	headerSize = 28 // the length included
)

// The types and states of messages, as libvirt's protocol numbers them.
const (
	typeReply  = 1
	typeStream = 3
	statusOK   = 0
	statusErr  = 1
)

const (
	programRemote = 0x20008086
	programQEMU   = 0x20008087
)

// procedure is a call by its program and number.
type procedure struct{ program, number uint32 }

// answers has what each procedure that the driver calls answers: s a text, o a text that may
// be missing, u a UUID, i 4 bytes, h 8 bytes, […] a list. "" is
// nothing at all. An answer of any other procedure ends the connection.
var answers = map[procedure]string{
	{programRemote, 1}: "", {programRemote, 2}: "", // ConnectOpen, ConnectClose
	{programRemote, 66}: "[i]", {programRemote, 70}: "i", // AuthList, AuthPolkit
	{programRemote, 6}:   strings.Repeat("i", 32) + "hiiiiii", // NodeGetInfo
	{programRemote, 14}:  "s",                                 // DomainGetXMLDesc
	{programRemote, 23}:  "sui",                               // DomainLookupByName
	{programRemote, 24}:  "sui",                               // DomainLookupByUUID
	{programRemote, 27}:  "",                                  // DomainReboot
	{programRemote, 43}:  "s",                                 // NetworkGetXMLDesc
	{programRemote, 46}:  "su",                                // NetworkLookupByName
	{programRemote, 83}:  "",                                  // StoragePoolRefresh
	{programRemote, 84}:  "su",                                // StoragePoolLookupByName
	{programRemote, 87}:  "ihhh",                              // StoragePoolGetInfo
	{programRemote, 88}:  "s",                                 // StoragePoolGetXMLDesc
	{programRemote, 93}:  "sss",                               // StorageVolCreateXML
	{programRemote, 94}:  "",                                  // StorageVolDelete
	{programRemote, 95}:  "sss",                               // StorageVolLookupByName
	{programRemote, 98}:  "ihh",                               // StorageVolGetInfo
	{programRemote, 99}:  "s",                                 // StorageVolGetXMLDesc
	{programRemote, 125}: "sss",                               // StorageVolCreateXMLFrom
	{programRemote, 152}: "i",                                 // NetworkIsActive
	{programRemote, 157}: "h",                                 // ConnectGetLibVersion
	{programRemote, 184}: "",                                  // DomainManagedSaveRemove
	{programRemote, 196}: "sui",                               // DomainCreateWithFlags
	{programRemote, 199}: "",                                  // DomainSetVcpusFlags
	{programRemote, 204}: "",                                  // DomainSetMemoryFlags
	{programRemote, 208}: "",                                  // StorageVolUpload
	{programRemote, 212}: "ii",                                // DomainGetState
	{programRemote, 227}: "[sh]i",                             // NodeGetCPUStats
	{programRemote, 228}: "[sh]i",                             // NodeGetMemoryStats
	{programRemote, 231}: "",                                  // DomainUndefineFlags
	{programRemote, 234}: "",                                  // DomainDestroyFlags
	{programRemote, 251}: "",                                  // DomainBlockResize
	{programRemote, 258}: "",                                  // DomainShutdownFlags
	{programRemote, 260}: "",                                  // StorageVolResize
	{programRemote, 264}: "",                                  // DomainSetMetadata
	{programRemote, 265}: "s",                                 // DomainGetMetadata
	{programRemote, 273}: "[sui]i",                            // ConnectListAllDomains
	{programRemote, 281}: "[su]i",                             // ConnectListAllStoragePools
	{programRemote, 282}: "[sss]i",                            // StoragePoolListAllVolumes
	{programRemote, 283}: "[su]i",                             // ConnectListAllNetworks
	{programRemote, 341}: "[shioosioo]i",                      // NetworkGetDhcpLeases
	{programRemote, 342}: "s",                                 // ConnectGetDomainCapabilities
	{programRemote, 350}: "sui",                               // DomainDefineXMLFlags
	{programRemote, 353}: "[so[isi]]",                         // DomainInterfaceAddresses
	{programQEMU, 3}:     "o",                                 // DomainAgentCommand
}

// upload is the one procedure that has a stream, of which the end is answered as well.
var upload = procedure{programRemote, 208}

// boundedConn is a connection to a daemon that may be hostile. The library that speaks
// libvirt's protocol believes each length that it reads, and deadlocks over an answer that
// nobody waits for. So whole messages are read here, and only those are handed on that answer
// a call of ours and decode to what their procedure answers.
type boundedConn struct {
	net.Conn
	closed chan struct{}
	once   sync.Once

	ready bytes.Buffer // what the library has yet to read of the message; the reader's alone

	mu      sync.Mutex
	sent    []byte             // the beginning of the message that the library writes
	skip    int                // what is left of it after its header
	waiting map[uint32]waiting // by serial
}

// waiting is a call whose answer is still to come.
type waiting struct {
	procedure procedure
	stream    bool // the call is answered, and the stream's end is to come
}

func newBoundedConn(conn net.Conn) *boundedConn {
	return &boundedConn{Conn: conn, closed: make(chan struct{}), waiting: map[uint32]waiting{}}
}

// Close ends the connection, and with it all calls.
func (c *boundedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// Write notes the calls that go out.
func (c *boundedConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	for rest := p; len(rest) > 0; {
		if c.skip > 0 {
			n := min(c.skip, len(rest))
			c.skip -= n
			rest = rest[n:]
			continue
		}
		n := min(headerSize-len(c.sent), len(rest))
		c.sent = append(c.sent, rest[:n]...)
		rest = rest[n:]
		if len(c.sent) == headerSize {
			if word(c.sent, 4) == 0 { // a call
				c.waiting[word(c.sent, 5)] = waiting{procedure: procedure{word(c.sent, 1), word(c.sent, 3)}}
			}
			c.skip = int(word(c.sent, 0)) - headerSize
			c.sent = c.sent[:0]
		}
	}
	c.mu.Unlock()
	return c.Conn.Write(p)
}

// Read hands on whole messages that were checked.
func (c *boundedConn) Read(p []byte) (int, error) {
	for c.ready.Len() == 0 {
		if err := c.message(); err != nil {
			_ = c.Close()
			return 0, err
		}
	}
	return c.ready.Read(p)
}

// message reads one message and keeps it if it is one that somebody waits for.
func (c *boundedConn) message() error {
	var length [4]byte
	if _, err := io.ReadFull(c.Conn, length[:]); err != nil {
		return err
	}
	size := int64(binary.BigEndian.Uint32(length[:]))
	if size < headerSize || size > maxMessage {
		return fmt.Errorf("a message of %d bytes, which can't be", size)
	}
	// Grows with what really comes.
	c.ready.Reset()
	c.ready.Write(length[:])
	if n, err := io.CopyN(&c.ready, c.Conn, size-4); err != nil {
		return fmt.Errorf("a message ends after %d of %d bytes: %w", n+4, size, err)
	}
	if c.ready.Cap() > 1<<20 && size < 1<<16 { // keep no large buffer for small messages
		c.ready = *bytes.NewBuffer(bytes.Clone(c.ready.Bytes()))
	}
	keep, err := c.expected(c.ready.Bytes())
	if err != nil {
		return err
	}
	if !keep {
		c.ready.Reset()
	}
	return nil
}

// expected says whether a message answers a call, once.
func (c *boundedConn) expected(message []byte) (bool, error) {
	serial, status, kind := word(message, 5), word(message, 6), word(message, 4)
	from := procedure{word(message, 1), word(message, 3)}
	c.mu.Lock()
	defer c.mu.Unlock()
	call, known := c.waiting[serial]
	switch {
	case kind != typeReply && kind != typeStream: // events, for which we do not ask
		return false, nil
	case !known || call.procedure != from || call.stream != (kind == typeStream):
		return false, fmt.Errorf("an answer to procedure %d, of which none was called", from.number)
	}
	delete(c.waiting, serial)
	shape, payload := "", message[headerSize:]
	switch status {
	case statusOK:
		if kind == typeReply {
			var used bool
			if shape, used = answers[from]; !used {
				return false, fmt.Errorf("an answer to procedure %d, which is not used", from.number)
			}
			if from == upload {
				c.waiting[serial] = waiting{from, true}
			}
		}
	case statusErr:
		shape = "iiisi" // as the library reads it: a missing text would be read amiss
	default:
		return false, fmt.Errorf("an answer with status %d", status)
	}
	if _, err := measure(shape, payload); err != nil {
		return false, fmt.Errorf("an answer to procedure %d that can't be decoded: %w", from.number, err)
	}
	return true, nil
}

func word(message []byte, at int) uint32 { return binary.BigEndian.Uint32(message[at*4:]) }

var errShort = errors.New("it ends early, or a length is too large")

// measure walks over a payload by its shape and answers what follows.
func measure(shape string, payload []byte) ([]byte, error) {
	for i := 0; i < len(shape); i++ {
		var err error
		switch shape[i] {
		case 'i':
			payload, err = skip(payload, 4)
		case 'h':
			payload, err = skip(payload, 8)
		case 'u':
			payload, err = skip(payload, 16)
		case 's':
			payload, err = skipString(payload)
		case 'o':
			if len(payload) < 4 || word(payload, 0) > 1 {
				return nil, errShort
			}
			there := word(payload, 0) == 1
			payload = payload[4:]
			if there {
				payload, err = skipString(payload)
			}
		case '[':
			end := i + closing(shape[i:])
			if len(payload) < 4 || word(payload, 0) > maxItems {
				return nil, errShort
			}
			n := word(payload, 0)
			payload = payload[4:]
			for ; n > 0 && err == nil; n-- {
				payload, err = measure(shape[i+1:end], payload)
			}
			i = end
		}
		if err != nil {
			return nil, err
		}
	}
	return payload, nil
}

// closing answers where the bracket closes that shape begins with.
func closing(shape string) int {
	depth := 0
	for i, c := range shape {
		switch c {
		case '[':
			depth++
		case ']':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	panic("a shape without its closing bracket: " + shape)
}

func skip(payload []byte, n int) ([]byte, error) {
	if len(payload) < n {
		return nil, errShort
	}
	return payload[n:], nil
}

func skipString(payload []byte) ([]byte, error) {
	if len(payload) < 4 || word(payload, 0) > maxString {
		return nil, errShort
	}
	return skip(payload[4:], (int(word(payload, 0))+3)/4*4)
}
