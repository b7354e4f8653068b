package source

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
)

// trust connects to HTTPS servers that a ca_file or one of the system's
// authorities vouches for. Reading the system's takes 10 ms of processor time,
// which each run would pay, so it is done for a server only for which the file
// did not do. Either way the connection is verified by the standard library.
type trust struct {
	file *http.Transport // trusts the ca_file; nil without one

	once   sync.Once
	wider  *http.Transport // trusts the system's authorities as well
	failed error
	bundle []byte
	dial   dialer
}

// dialer connects; nil: as usual, by way of a proxy where there is one.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// readAuthorities reads a file of certificates; "" is none.
func readAuthorities(file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	bundle, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if !x509.NewCertPool().AppendCertsFromPEM(bundle) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", file)
	}
	return bundle, nil
}

func newTrust(bundle []byte, dial dialer) *trust {
	t := &trust{bundle: bundle, dial: dial}
	if bundle != nil {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(bundle)
		t.file = newTransport(pool, dial)
	}
	return t
}

// newTransport trusts the given authorities, nil for the system's.
func newTransport(roots *x509.CertPool, dial dialer) *http.Transport {
	t := &http.Transport{
		Proxy:             http.ProxyFromEnvironment,
		TLSClientConfig:   &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2: true,
	}
	if dial != nil {
		t.Proxy, t.DialContext = nil, dial
	}
	return t
}

// RoundTrip implements http.RoundTripper. A request whose server was not
// trusted has not been sent.
func (t *trust) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.file != nil {
		res, err := t.file.RoundTrip(req)
		if _, untrusted := errors.AsType[*tls.CertificateVerificationError](err); !untrusted {
			return res, err
		}
		if req.Body != nil {
			if req.GetBody == nil {
				return nil, err
			}
			body, again := req.GetBody()
			if again != nil {
				return nil, again
			}
			req = req.Clone(req.Context())
			req.Body = body
		}
	}
	t.once.Do(t.widen)
	if t.failed != nil {
		return nil, t.failed
	}
	return t.wider.RoundTrip(req)
}

func (t *trust) widen() {
	if t.bundle == nil {
		t.wider = newTransport(nil, t.dial)
		return
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		t.failed = &localError{fmt.Errorf("read the system's certificates: %w", err)}
		return
	}
	roots.AppendCertsFromPEM(t.bundle)
	t.wider = newTransport(roots, t.dial)
}

// closeIdle closes connections that nothing uses.
func (t *trust) closeIdle() {
	t.once.Do(func() {}) // no request is under way that could widen
	if t.file != nil {
		t.file.CloseIdleConnections()
	}
	if t.wider != nil {
		t.wider.CloseIdleConnections()
	}
}
