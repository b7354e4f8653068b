package web

import (
	"crypto/tls"
	"fmt"
	"log/slog"
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
