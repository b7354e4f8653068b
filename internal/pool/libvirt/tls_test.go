package libvirt

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// issued is a certificate with its key, also as files.
type issued struct {
	cert              *x509.Certificate
	key               *ecdsa.PrivateKey
	certFile, keyFile string
}

// issue makes a certificate; by nil it is its own authority.
func issue(t *testing.T, by *issued) *issued {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: by == nil,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	i := &issued{cert, key, filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	for file, block := range map[string]*pem.Block{i.certFile: {Type: "CERTIFICATE", Bytes: der}, i.keyFile: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return i
}

func TestTLS(t *testing.T) {
	t.Parallel()
	ca, other := issue(t, nil), issue(t, nil)
	server, client, stranger := issue(t, ca), issue(t, ca), issue(t, other)
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{server.cert.Raw}, PrivateKey: server.key}},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: roots,
	})
	if err != nil {
		t.Fatal(err)
	}
	// No domain is there: error 42, which is ErrNoDomain.
	d := daemon{listener, func(serial, number uint32, _ []byte) [][]byte {
		return [][]byte{message(programRemote, number, typeReply, serial, statusErr, words(42, 10, 1, 0, 2)...)}
	}}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if _, err := conn.Write([]byte{1}); err == nil { // the certificate is taken
				d.serve(conn)
			}
			_ = conn.Close()
		}
	}()
	sum := sha256.Sum256(server.cert.Raw)
	for name, each := range map[string]struct {
		config pool.Config
		want   error
	}{
		"both sides know each other": {pool.Config{CAFile: ca.certFile, CertFile: client.certFile, KeyFile: client.keyFile}, pool.ErrGone},
		"by the fingerprint":         {pool.Config{Fingerprint: hex.EncodeToString(sum[:]), CertFile: client.certFile, KeyFile: client.keyFile}, pool.ErrGone},
		"another fingerprint":        {pool.Config{Fingerprint: hex.EncodeToString(make([]byte, 32)), CertFile: client.certFile, KeyFile: client.keyFile}, pool.ErrUnreachable},
		"another authority":          {pool.Config{CAFile: other.certFile, CertFile: client.certFile, KeyFile: client.keyFile}, pool.ErrUnreachable},
		"no certificate of ours":     {pool.Config{CAFile: ca.certFile}, pool.ErrUnreachable},
		"another's certificate":      {pool.Config{CAFile: ca.certFile, CertFile: stranger.certFile, KeyFile: stranger.keyFile}, pool.ErrUnreachable},
		"files that are not there":   {pool.Config{CAFile: "/nowhere", CertFile: "/nowhere", KeyFile: "/nowhere"}, pool.ErrUnreachable},
	} {
		config := each.config
		config.Name, config.URL, config.Timeout = "lab", "tls://"+listener.Addr().String(), patience.For(20*time.Second)
		opened, err := Open(config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := opened.Look(t.Context(), pool.Ref{ID: anID}); !errors.Is(err, each.want) {
			t.Errorf("%s: Look: %v; want %v", name, err, each.want)
		}
		_ = opened.Close()
	}
	_ = listener.Close()
	<-ended
}
