package rpcgateway_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// tap stands between a gateway and its database and reads along which SQL it
// sends: whatever is not there was not sent.
type tap struct {
	url string

	mu   sync.Mutex
	sent map[string]int // how often each statement was sent
	bad  error          // what could not be read along
}

func newTap(t testing.TB, databaseURL string) *tap {
	t.Helper()
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	u.Host, u.RawQuery = listener.Addr().String(), "sslmode=disable"
	tp := &tap{url: u.String(), sent: map[string]int{}}
	var working sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		working.Wait()
	})
	working.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("unix", filepath.Join(config.Host, ".s.PGSQL.5432"))
			if err != nil {
				_ = client.Close()
				continue
			}
			working.Go(func() { tp.carry(client, server) })
		}
	})
	return tp
}

// carry passes a connection on until either side ends it.
func (tp *tap) carry(client, server net.Conn) {
	read, write := io.Pipe()
	var sides sync.WaitGroup
	sides.Go(func() {
		_, _ = io.Copy(client, server)
		_ = client.Close()
	})
	sides.Go(func() {
		defer func() { _ = read.Close() }()
		if err := tp.readAlong(read); err != nil {
			tp.mu.Lock()
			defer tp.mu.Unlock()
			tp.bad = err
		}
	})
	_, _ = io.Copy(server, io.TeeReader(client, write))
	_ = write.Close()
	_ = server.Close()
	sides.Wait()
}

// readAlong reads a client's messages: the opening, which has no kind, then
// each with a kind, a length that counts itself, and a body.
func (tp *tap) readAlong(r io.Reader) error {
	head := make([]byte, 5)
	for opened := false; ; opened = true {
		head := head
		if !opened {
			head = head[1:]
		}
		if _, err := io.ReadFull(r, head); err != nil {
			return nil //nolint:nilerr // the connection has ended
		}
		body := make([]byte, binary.BigEndian.Uint32(head[len(head)-4:])-4)
		if _, err := io.ReadFull(r, body); err != nil {
			return nil //nolint:nilerr // likewise
		}
		switch {
		case !opened:
		case head[0] == 'P':
			parts := bytes.SplitN(body, []byte{0}, 3) // name, statement, types
			if len(parts) != 3 {
				return fmt.Errorf("a Parse message %q", body)
			}
			tp.note(string(parts[1]))
		case head[0] == 'Q', head[0] == 'F': // a function call by its number is none of ours
			tp.note(string(bytes.TrimRight(body, "\x00")))
		}
	}
}

// probe is the channel by which a session finds out that it hears.
var probe = regexp.MustCompile(`tendril_hears_\w+`)

func (tp *tap) note(statement string) {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	tp.sent[probe.ReplaceAllString(statement, "tendril_hears_…")]++
}

// statements returns what was sent so far.
func (tp *tap) statements(t testing.TB) []string {
	t.Helper()
	tp.mu.Lock()
	defer tp.mu.Unlock()
	if tp.bad != nil {
		t.Fatalf("reading along: %v", tp.bad)
	}
	var all []string
	for statement := range tp.sent {
		all = append(all, statement)
	}
	return all
}
