package wiretest

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path"
	"testing"
)

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
