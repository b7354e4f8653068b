package container

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	dockercontainer "github.com/moby/moby/api/types/container"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/network"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// trellis is one trellis serve at a test's database.
type trellis struct {
	url       string // for agents
	container testcontainers.Container
	w         *world
	pair      tls.Certificate
}

// startTrellis serves over TLS, by the certificate that the test's git servers
// have as well. One that is there has that name until it is stopped.
func startTrellis(w *world, image string) *trellis {
	w.t.Helper()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	s := &trellis{w: w, url: "https://" + trellisHost + ":8080", pair: server.TLS.Certificates[0]}
	private, err := x509.MarshalPKCS8PrivateKey(s.pair.PrivateKey)
	if err != nil {
		w.t.Fatal(err)
	}
	dir := w.t.TempDir()
	mounted := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o644); err != nil {
			w.t.Fatal(err)
		}
		return path + ":/tls/" + name + ":ro"
	}
	binds := []string{mounted("tls.crt", "CERTIFICATE", s.pair.Certificate[0]), mounted("tls.key", "PRIVATE KEY", private)}
	s.container = start(w.t, image,
		network.WithNetwork([]string{trellisHost}, shared.network),
		hardened(func(h *dockercontainer.HostConfig) { h.Binds = binds }),
		testcontainers.WithEnv(map[string]string{
			"TRELLIS_DATABASE_URL": w.ownerURL(), "TRELLIS_TLS_CERT": "/tls/tls.crt", "TRELLIS_TLS_KEY": "/tls/tls.key",
		}),
		testcontainers.WithWaitStrategy(wait.ForLog("serving people and agents").WithStartupTimeout(patience.For(usual))),
	)
	return s
}

// stop is docker stop.
func (s *trellis) stop() {
	s.w.t.Helper()
	grace := patience.For(usual)
	if err := s.container.Stop(context.Background(), &grace); err != nil {
		s.w.t.Fatal(err)
	}
}

// wantHealthy asks as a load balancer would.
func (s *trellis) wantHealthy() {
	t := s.w.t
	t.Helper()
	address, err := s.container.ContainerIP(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(s.pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(certificate)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: trellisHost}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+":8080/healthz", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	// On a busy machine the database may answer too late, for once.
	said := ""
	patience.AwaitShowing(t, "/healthz to be well", func() string { return said }, func() bool {
		answer, err := transport.RoundTrip(request)
		if err != nil {
			said = err.Error()
			return false
		}
		said = answer.Status
		return answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	})
}
