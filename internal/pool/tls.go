package pool

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
)

// TLS returns how a driver verifies its server's certificate: by Fingerprint, by CA or CAFile, by
// the machine's own authorities, or, with Insecure, not at all.
func (c Config) TLS() (*tls.Config, error) {
	settings := &tls.Config{MinVersion: tls.VersionTLS12}
	switch {
	case c.Fingerprint != "":
		pinned, err := hex.DecodeString(strings.ReplaceAll(c.Fingerprint, ":", ""))
		if err != nil || len(pinned) != sha256.Size {
			return nil, errors.New("fingerprint: write the 64 hexadecimal digits of the certificate's SHA-256")
		}
		settings.InsecureSkipVerify = true // VerifyConnection compares the certificate itself
		settings.VerifyConnection = func(state tls.ConnectionState) error {
			if got := sha256.Sum256(state.PeerCertificates[0].Raw); string(got[:]) != string(pinned) {
				return fmt.Errorf("the server's certificate has the fingerprint %x, and not the configured one; if it was renewed, configure the new one", got)
			}
			return nil
		}
	case c.CA != "" || c.CAFile != "":
		data := []byte(c.CA)
		if c.CA == "" {
			var err error
			if data, err = os.ReadFile(c.CAFile); err != nil {
				return nil, fmt.Errorf("ca file: %w", err)
			}
		}
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("ca file %s has no certificate in PEM form", cmp.Or(c.CAFile, "(as it was given)"))
		}
	case c.Insecure:
		settings.InsecureSkipVerify = true // the operator's explicit wish, which Check reports
	}
	return settings, nil
}
