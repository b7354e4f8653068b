package site

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/outputtest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// Gateway is one trellis serve before a database, for agents without a
// connection to it.
type Gateway struct {
	// URL is what agents are given.
	URL     string
	Address string
	Cmd     *exec.Cmd
	Out     *outputtest.Buffer
	T       testing.TB
	// Env is what its environment has more, from the next start on.
	Env []string

	database, home, certificate, key string
	flags                            []string
	done                             chan struct{}
}

// Ways are how agents can reach the queue: the database itself, the database by a pooler in
// transaction mode, and a gateway with the cluster's token or with a key of their own.
var ways = []string{"postgres", "pgbouncer", "https", "key"}

// way is how agents reach the queue in all tests that do not say otherwise: what
// TENDRIL_TEST_QUEUE says, with any as is drawn for each site, where a pooler is left out, for many
// tests cut single connections; else the database itself.
func way(t testing.TB) string {
	t.Helper()
	way := cmp.Or(os.Getenv("TENDRIL_TEST_QUEUE"), ways[0])
	if way == "any" {
		drawn := slices.DeleteFunc(slices.Clone(ways), func(way string) bool { return way == "pgbouncer" })
		way = drawn[rand.IntN(len(drawn))]
		t.Logf("TENDRIL_TEST_QUEUE=%s", way)
	}
	if !slices.Contains(ways, way) {
		t.Fatalf("TENDRIL_TEST_QUEUE=%s: want any or one of %q", way, ways)
	}
	return way
}

// Serve starts a gateway to the database and has the agents configured from
// now on reach the queue by way of it. Flags are further ones of trellis serve.
func (s *Site) Serve(flags ...string) *Gateway {
	s.T.Helper()
	g := serve(s.T, s.URL, flags...)
	s.Gateway, s.QueueURL = g, g.URL
	return g
}

func serve(t testing.TB, databaseURL string, flags ...string) *Gateway {
	t.Helper()
	g := &Gateway{T: t, Address: Address(t), Out: &outputtest.Buffer{}, database: databaseURL, home: t.TempDir(), flags: flags}
	g.URL = "https://" + g.Address
	g.certificate, g.key = Certificate(t)
	t.Cleanup(func() {
		if !end(g.Cmd, g.done) {
			t.Error("the gateway does not end")
		}
		if t.Failed() {
			t.Logf("log of the gateway:\n%s", g.Out)
		}
		for _, fault := range []string{"DATA RACE", "panic serving"} { // net/http survives a handler's panic
			if strings.Contains(g.Out.String(), fault) {
				t.Errorf("the gateway has a fault, %s:\n%s", fault, g.Out)
			}
		}
	})
	g.Start()
	return g
}

// Address is one that is free, and stays so while nobody listens there: it is not
// among those that the kernel gives to whoever asks for any.
func Address(t testing.TB) string {
	t.Helper()
	for {
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.N(20_000)))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close() //nolint:errcheck // nobody was heard
		return listener.Addr().String()
	}
}

// People is the environment in which trellis asks, as the local user, the
// site's gateway, or one of their own where agents have none.
func (s *Site) People() []string {
	s.T.Helper()
	g := s.Gateway
	if g == nil {
		g = serve(s.T, s.URL)
	}
	token := exec.CommandContext(s.T.Context(), Program("trellis"), "admin", "token", "--database-url", s.URL)
	token.Env = []string{"HOME=" + g.home, "GORACE=atexit_sleep_ms=0"}
	out, err := token.Output()
	if err != nil {
		s.T.Fatalf("trellis admin token: %v", err)
	}
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + g.home, "GORACE=atexit_sleep_ms=0",
		"TRELLIS_URL=https://" + g.Address, "TRELLIS_CA_FILE=" + g.certificate, "TRELLIS_TOKEN=" + strings.TrimSpace(string(out)),
	}
}

// Start starts it, again after Kill.
func (g *Gateway) Start() {
	g.T.Helper()
	// All agents of a test have one address.
	g.Cmd = exec.Command(Program("trellis"), append([]string{"serve", "--listen", g.Address, "--tls-cert", g.certificate, "--tls-key", g.key, "--rate", "-1"}, g.flags...)...)
	g.Cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + g.home, "GORACE=atexit_sleep_ms=0", "TRELLIS_DATABASE_URL=" + g.database}
	g.Cmd.Env = append(g.Cmd.Env, g.Env...)
	g.Cmd.Stdout, g.Cmd.Stderr = g.Out, g.Out
	if err := g.Cmd.Start(); err != nil {
		g.T.Fatal(err)
	}
	cmd, done := g.Cmd, make(chan struct{})
	g.done = done
	go func() {
		_ = cmd.Wait() // its output tells
		close(done)
	}()
	limit := patience.After(Patience)
	for {
		if conn, err := net.Dial("tcp", g.Address); err == nil {
			_ = conn.Close() // it is there
			return
		}
		select {
		case <-done:
			g.T.Fatalf("the gateway ended:\n%s", g.Out)
		case <-limit:
			g.T.Fatalf("the gateway does not answer:\n%s", g.Out)
		case <-time.After(20 * time.Millisecond): // between two looks
		}
	}
}

// Kill is kill -9.
func (g *Gateway) Kill() {
	g.T.Helper()
	if err := g.Cmd.Process.Kill(); err != nil {
		g.T.Fatal(err)
	}
	<-g.done
}

// Replace ends it in order, and starts another.
func (g *Gateway) Replace() {
	g.T.Helper()
	if !end(g.Cmd, g.done) {
		g.T.Fatal("the gateway does not end")
	}
	g.Start()
}

// Certificate writes the certificate and the key that all servers of
// net/http/httptest have, so that one CA file is good for all of a test's.
func Certificate(t testing.TB) (certificate, key string) {
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
