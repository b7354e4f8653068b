package source

import (
	"bytes"
	"errors"
	"fmt"
	"os"
)

// systemBundles is where systems keep their certificates in one file.
func systemBundles() []string {
	return []string{
		os.Getenv("SSL_CERT_FILE"),
		"/etc/ssl/certs/ca-certificates.crt",                // Debian, Alpine
		"/etc/pki/tls/certs/ca-bundle.crt",                  // Fedora, RHEL
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // RHEL
		"/etc/ssl/ca-bundle.pem",                            // SUSE
		"/etc/ssl/cert.pem",
	}
}

// bundle writes the ca_file and the system's certificates into one file below
// dir, for git trusts one file only. "" without a ca_file.
func (s *Source) bundle(dir string) (path string, err error) {
	if s.authorities == nil {
		return "", nil
	}
	text := bytes.Clone(s.authorities)
	for _, name := range systemBundles() {
		if system, err := os.ReadFile(name); name != "" && err == nil {
			text = append(append(text, '\n'), system...)
			break
		}
	}
	file, err := os.CreateTemp(dir, "ca-*.pem")
	if err != nil {
		return "", fmt.Errorf("write the certificates for git: %w", err)
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Chmod(0o644), file.Close()); err != nil {
		return "", fmt.Errorf("write the certificates for git: %w", err)
	}
	return file.Name(), nil
}
