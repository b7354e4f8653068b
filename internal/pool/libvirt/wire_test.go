package libvirt

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// daemon is one that answers as answer says, to any call but those of the handshake.
type daemon struct {
	listener net.Listener
	answer   func(serial, number uint32, arguments []byte) [][]byte
}

// message makes one of libvirt's.
func message(program, number, kind, serial, status uint32, payload ...byte) []byte {
	m := make([]byte, headerSize, headerSize+len(payload))
	for i, value := range []uint32{uint32(headerSize + len(payload)), program, 1, number, kind, serial, status} {
		binary.BigEndian.PutUint32(m[i*4:], value)
	}
	return append(m, payload...)
}

func reply(number, serial uint32, payload ...byte) []byte {
	return message(programRemote, number, typeReply, serial, statusOK, payload...)
}

func words(values ...uint32) []byte {
	var b []byte
	for _, value := range values {
		b = binary.BigEndian.AppendUint32(b, value)
	}
	return b
}

// listen is serving for answers that have nothing to do with the arguments.
func listen(t *testing.T, answer func(serial, number uint32) [][]byte) string {
	t.Helper()
	return serving(t, func(serial, number uint32, _ []byte) [][]byte { return answer(serial, number) })
}

// serving starts a daemon, which ends with the test, and answers its URL.
func serving(t *testing.T, answer func(serial, number uint32, arguments []byte) [][]byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sock")
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	d := daemon{listener, answer}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			d.serve(conn)
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-ended })
	return "unix://" + path
}

// serve answers one connection until the other side closes it.
func (d daemon) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	for {
		header := make([]byte, headerSize)
		if _, err := io.ReadFull(conn, header); err != nil {
			return
		}
		arguments := make([]byte, word(header, 0)-headerSize)
		if _, err := io.ReadFull(conn, arguments); err != nil {
			return
		}
		serial, number := word(header, 5), word(header, 3)
		var answers [][]byte
		switch number {
		case 66: // AuthList: none
			answers = [][]byte{reply(number, serial, words(1, 0)...)}
		case 1: // ConnectOpen
			answers = [][]byte{reply(number, serial)}
		case 157: // ConnectGetLibVersion
			answers = [][]byte{reply(number, serial, words(0, 9_000_000)...)}
		default:
			answers = d.answer(serial, number, arguments)
		}
		for _, each := range answers {
			if _, err := conn.Write(each); err != nil {
				return
			}
		}
	}
}

func openURL(t *testing.T, url string, timeout time.Duration) *driver {
	t.Helper()
	opened, err := Open(pool.Config{Name: "lab", Kind: "libvirt", URL: url, Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close() })
	return opened.(*driver)
}

const anID = "5b1ff0a7-3c6e-4f1b-9d2e-8a5f0c7d4e21"

func TestHostileDaemon(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(serial, number uint32) [][]byte{
		"a length below the header's":    func(uint32, uint32) [][]byte { return [][]byte{words(3, 0, 0, 0, 0, 0, 0)} },
		"a length of 4 GiB":              func(uint32, uint32) [][]byte { return [][]byte{words(0xffffffff, 0, 0, 0, 0, 0, 0)} },
		"a length of 1 GiB":              func(uint32, uint32) [][]byte { return [][]byte{words(1<<30, 0, 0, 0, 0, 0, 0)} },
		"a text of 2 GiB":                func(serial, number uint32) [][]byte { return [][]byte{reply(number, serial, words(1<<31-8)...)} },
		"an answer that ends early":      func(serial, number uint32) [][]byte { return [][]byte{reply(number, serial, words(1)...)} },
		"an answer to another call":      func(serial, number uint32) [][]byte { return [][]byte{reply(number, serial+7)} },
		"an answer of another procedure": func(serial, _ uint32) [][]byte { return [][]byte{reply(14, serial, words(0)...)} },
		"an unknown status": func(serial, number uint32) [][]byte {
			return [][]byte{message(programRemote, number, typeReply, serial, 9)}
		},
		"a stream that nobody opened": func(serial, number uint32) [][]byte {
			return [][]byte{message(programRemote, number, typeStream, serial, statusOK)}
		},
		"an error whose text is 2 GiB": func(serial, number uint32) [][]byte {
			return [][]byte{message(programRemote, number, typeReply, serial, statusErr, words(1, 1, 1, 1<<31-8)...)}
		},
		"an error without anything": func(serial, number uint32) [][]byte {
			return [][]byte{message(programRemote, number, typeReply, serial, statusErr)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := openURL(t, listen(t, answer), patience.For(20*time.Second))
			_, err := d.Look(t.Context(), pool.Ref{ID: anID})
			if !errors.Is(err, pool.ErrUnreachable) {
				t.Errorf("Look: %v; want ErrUnreachable", err)
			}
		})
	}
}

// The library would wait for ever for somebody to take the second answer.
func TestDaemonThatAnswersTwice(t *testing.T) {
	t.Parallel()
	d := openURL(t, listen(t, func(serial, number uint32) [][]byte {
		domain := append(append(words(1), "m\x00\x00\x00"...), make([]byte, 20)...)
		return [][]byte{reply(number, serial, domain...), reply(number, serial, domain...)}
	}), patience.For(20*time.Second))
	// What it learns depends on how fast the second one is; that it ends does not.
	if found, err := d.Look(t.Context(), pool.Ref{ID: anID}); err == nil {
		t.Errorf("Look = %+v", found)
	}
}

func TestDaemonThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	d := openURL(t, listen(t, func(uint32, uint32) [][]byte { return nil }), 50*time.Millisecond)
	_, err := d.Look(t.Context(), pool.Ref{ID: anID})
	if !errors.Is(err, pool.ErrUnreachable) || !strings.Contains(err.Error(), "no answer within 50ms") {
		t.Errorf("Look: %v; want ErrUnreachable after 50ms", err)
	}
	// A caller that gives up is let go, long before the request's time is over.
	d = openURL(t, listen(t, func(uint32, uint32) [][]byte { return nil }), time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := d.Look(ctx, pool.Ref{ID: anID}); !errors.Is(err, context.Canceled) {
		t.Errorf("Look whose caller gives up: %v", err)
	}
}

func TestMeasure(t *testing.T) {
	t.Parallel()
	interfaces := append(append(words(1, 2), "lo\x00\x00"...), words(0, 2, 0, 1)...)
	interfaces = append(append(interfaces, "a\x00\x00\x00"...), words(8, 0, 1)...)
	interfaces = append(append(interfaces, "b\x00\x00\x00"...), words(8)...)
	shape := answers[procedure{programRemote, 353}]
	if rest, err := measure(shape, interfaces); err != nil || len(rest) != 0 {
		t.Errorf("measure(%q) leaves %d bytes, %v", shape, len(rest), err)
	}
	for cut := range interfaces {
		if _, err := measure(shape, interfaces[:cut]); err == nil {
			t.Errorf("measure(%q) accepts the first %d of %d bytes", shape, cut, len(interfaces))
		}
	}
	if _, err := measure("[i]", words(maxItems+1)); err == nil {
		t.Error("measure accepts a list that is too long")
	}
}

func FuzzMeasure(f *testing.F) {
	f.Add(uint8(0), words(1, 2, 3))
	f.Fuzz(func(t *testing.T, which uint8, payload []byte) {
		shapes := []string{"[so[isi]]", "[shioosioo]i", "[sui]i", "iiisi", "sss", "o"}
		rest, err := measure(shapes[int(which)%len(shapes)], payload)
		if err == nil && len(rest) > len(payload) {
			t.Errorf("measure answers %d of %d bytes", len(rest), len(payload))
		}
	})
}
