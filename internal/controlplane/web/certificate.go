package web

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// lookEvery is how often a handshake looks for a renewed certificate at most.
const lookEvery = 5 * time.Second

// Certificate is one of files that are replaced when it is renewed.
type Certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu       sync.Mutex
	loaded   *tls.Certificate
	changed  time.Time // the newer of the files, when loaded or tried
	lookedAt time.Time
}

// LoadCertificate reads a certificate and its key, PEM both.
func LoadCertificate(certFile, keyFile string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, log: log, lookedAt: time.Now()}
	c.changed = c.newest()
	loaded, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("read the certificate %s with the key %s: %w", certFile, keyFile, err)
	}
	c.loaded = &loaded
	return c, nil
}

// get returns the certificate as the files have it. One that cannot be read
// (half of a renewal) leaves the one before in use.
func (c *Certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.lookedAt) < lookEvery {
		return c.loaded, nil
	}
	c.lookedAt = time.Now()
	newest := c.newest()
	if newest.Equal(c.changed) {
		return c.loaded, nil
	}
	c.changed = newest
	loaded, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		c.log.Error("the renewed certificate cannot be used; the one before stays", "file", c.certFile, "error", err)
		return c.loaded, nil
	}
	c.loaded = &loaded
	c.log.Info("using the renewed certificate", "file", c.certFile, "expires", loaded.Leaf.NotAfter)
	return c.loaded, nil
}

func (c *Certificate) newest() time.Time {
	var newest time.Time
	for _, file := range []string{c.certFile, c.keyFile} {
		if info, err := os.Stat(file); err == nil && info.ModTime().After(newest) {
			newest = info.ModTime()
		}
	}
	return newest
}

// CheckPlain refuses to answer other machines over plain HTTP unless that is
// allowed by name: sessions and tokens would cross the network in the clear. It is
// the rule of trellis up and trellis serve.
func CheckPlain(listen, certFile, keyFile string, allowed bool) error {
	switch {
	case (certFile == "") != (keyFile == ""):
		return errors.New("--tls-cert and --tls-key: give both, or neither")
	case certFile == "" && !allowed && !Loopback(listen):
		return fmt.Errorf("--listen %s lets other machines in, and without a certificate their passwords and tokens cross the network in the clear: give --tls-cert and --tls-key, or add --allow-http, for example where a proxy in front speaks TLS", listen)
	}
	return nil
}

// Loopback reports whether only this machine reaches an address to listen on.
func Loopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	address, err := netip.ParseAddr(cmp.Or(host, "::"))
	return host == "localhost" || err == nil && address.IsLoopback()
}
