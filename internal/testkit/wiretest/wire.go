package wiretest

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Call is one call of an SQL function, however it is sent.
type Call struct {
	Function string
	// Args are the parameters as they were sent: text, or PostgreSQL's binary
	// form where the client chose that (UUIDs, for one).
	Args []string
	// Named are they by name, as text or JSON, where the protocol names them.
	Named map[string]string
}

// Fate is what becomes of a call.
type Fate int

// What can become of a call. All but Deliver break the client's connection.
const (
	// Deliver passes on the request and the reply.
	Deliver Fate = iota
	// LoseReply has the server do and commit it, and swallows the answer.
	LoseReply
	// LoseRequest keeps it from the server.
	LoseRequest
	// Delay keeps it from the server until DeliverDelayed, as a network does
	// that sends again what a client has long given up.
	Delay
)

// calls knows what each statement and portal of a session calls.
type calls struct {
	statements, portals map[string]Call
}

func newCalls() *calls { return &calls{statements: map[string]Call{}, portals: map[string]Call{}} }

var called = regexp.MustCompile(`(?i)\bpublic\.(\w+)\s*\(`)

func callOf(sql string) Call {
	if found := called.FindStringSubmatch(sql); found != nil {
		return Call{Function: found[1]}
	}
	return Call{}
}

// read takes a client's message and answers the call it makes, if any.
func (c *calls) read(m frame) (made Call, err error) {
	switch m.kind() {
	case 'P':
		var parse pgproto3.Parse
		if err := parse.Decode(m.body()); err != nil {
			return made, err
		}
		c.statements[parse.Name] = callOf(parse.Query)
	case 'B':
		var bind pgproto3.Bind
		if err := bind.Decode(m.body()); err != nil {
			return made, err
		}
		portal := Call{Function: c.statements[bind.PreparedStatement].Function}
		for _, value := range bind.Parameters {
			portal.Args = append(portal.Args, string(value))
		}
		c.portals[bind.DestinationPortal] = portal
	case 'E':
		var execute pgproto3.Execute
		if err := execute.Decode(m.body()); err != nil {
			return made, err
		}
		made = c.portals[execute.Portal]
	case 'Q':
		var query pgproto3.Query
		if err := query.Decode(m.body()); err != nil {
			return made, err
		}
		made = callOf(query.String)
	}
	return made, nil
}

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

// NewHTTPS starts a proxy for a server that speaks HTTPS at an address. Clients
// reach the proxy by HTTPS as well, under the certificate that all servers of
// net/http/httptest have. It ends with the test.
func NewHTTPS(t testing.TB, address string) *Proxy {
	t.Helper()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	certificates := server.TLS.Certificates
	server.Close()
	return start(t, &Proxy{
		secure: &tls.Config{Certificates: certificates, NextProtos: []string{"http/1.1"}},
		dial: func() (net.Conn, error) {
			// The client has checked whom it speaks to: the test.
			return tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
		},
		speak: func() speech { return web{} },
	})
}

// web is HTTP/1.1; a call is the last element of a request's path, its
// arguments are the values of the JSON object that is its body.
type web struct{}

func (web) opening(*bufio.Reader, net.Conn) (out []byte, last bool, err error) {
	return nil, false, nil
}

func (web) request(r *bufio.Reader) (message, error) {
	req, err := http.ReadRequest(r)
	if err != nil {
		return message{}, err
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return message{}, err
	}
	var named map[string]json.RawMessage
	if err := json.Unmarshal(body, &named); err != nil {
		return message{}, fmt.Errorf("wiretest: the body of %s: %w", req.URL.Path, err)
	}
	call := Call{Function: path.Base(req.URL.Path), Named: map[string]string{}}
	for name, value := range named {
		var text string
		if json.Unmarshal(value, &text) != nil {
			text = string(value)
		}
		call.Named[name] = text
	}
	var out bytes.Buffer
	req.Body, req.ContentLength, req.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	err = req.Write(&out)
	return message{bytes: out.Bytes(), call: call}, err
}

func (web) reply(r *bufio.Reader) (out []byte, done bool, err error) {
	answer, err := http.ReadResponse(r, nil)
	if err != nil {
		return nil, false, err
	}
	defer answer.Body.Close() //nolint:errcheck // it has been read
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, false, err
	}
	answer.Body = io.NopCloser(bytes.NewReader(body))
	if answer.ContentLength < 0 {
		answer.ContentLength, answer.TransferEncoding = int64(len(body)), nil
	}
	var whole bytes.Buffer
	err = answer.Write(&whole)
	return whole.Bytes(), true, err
}

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
