package site

import (
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Gateway is one trellis serve before a database, for agents without a
// connection to it.
type Gateway struct {
	// URL is what agents are given.
	URL     string
	Address string
	Cmd     *exec.Cmd
	Out     *Output
}

// overHTTPS says that agents reach the queue by way of a gateway, in all tests
// that do not say otherwise.
func overHTTPS() bool { return os.Getenv("TENDRIL_TEST_QUEUE") == "https" }

// Serve starts a gateway to the database and has the agents configured from
// now on reach the queue by way of it.
func (s *Site) Serve() *Gateway {
	s.T.Helper()
	g := serve(s.T, s.URL)
	s.Gateway, s.QueueURL = g, g.URL
	return g
}

func serve(t testing.TB, databaseURL string) *Gateway {
	t.Helper()
	certificate, key := serverCertificate(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &Gateway{Address: listener.Addr().String(), Out: &Output{}}
	g.URL = "https://" + g.Address
	_ = listener.Close() // the address is free again
	g.Cmd = exec.Command(Program("trellis"), "serve", "--listen", g.Address, "--tls-cert", certificate, "--tls-key", key)
	g.Cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GORACE=atexit_sleep_ms=0", "TRELLIS_DATABASE_URL=" + databaseURL}
	g.Cmd.Stdout, g.Cmd.Stderr = g.Out, g.Out
	if err := g.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		_ = g.Cmd.Wait() // its output tells
		close(done)
	}()
	t.Cleanup(func() {
		if !end(g.Cmd, done) {
			t.Error("the gateway does not end")
		}
		if t.Failed() {
			t.Logf("log of the gateway:\n%s", g.Out)
		}
	})
	g.await(t, done)
	return g
}

// await waits until the gateway answers.
func (g *Gateway) await(t testing.TB, done <-chan struct{}) {
	t.Helper()
	limit := time.After(Patience)
	for {
		if conn, err := net.Dial("tcp", g.Address); err == nil {
			_ = conn.Close() // it is there
			return
		}
		select {
		case <-done:
			t.Fatalf("the gateway ended:\n%s", g.Out)
		case <-limit:
			t.Fatalf("the gateway does not answer:\n%s", g.Out)
		case <-time.After(20 * time.Millisecond): // between two looks
		}
	}
}

// serverCertificate writes the certificate and the key that all servers of
// net/http/httptest have, so that one CA file is good for all of a test's.
func serverCertificate(t testing.TB) (certificate, key string) {
	t.Helper()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	pair := server.TLS.Certificates[0]
	private, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	return write("cert.pem", "CERTIFICATE", pair.Certificate[0]), write("key.pem", "PRIVATE KEY", private)
}
