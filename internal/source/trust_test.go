package source

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

// strangerCA writes the certificate of an authority that nobody knows.
func strangerCA(t *testing.T) (path string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "stranger.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A ca_file adds to whom the system trusts, and takes nothing away. A process
// reads the system's authorities once, so each case has one of its own.
func TestTrust(t *testing.T) {
	t.Parallel()
	if url := os.Getenv("TRUST_TEST_URL"); url != "" {
		resolveAs(t, url)
		return
	}
	server := gittest.NewServer(t)
	repo, _ := server.Repo("envtempl", gittest.Text(map[string]string{"main.tf": ""}), "v1")
	stranger := strangerCA(t)
	for _, test := range []struct {
		name, system, caFile, want string
	}{
		{"ca_file knows the server", stranger, server.CAFile, "resolved"},
		{"only the system knows it", server.CAFile, stranger, "resolved"},
		{"the system knows it, no ca_file", server.CAFile, "", "resolved"},
		{"nobody knows it", stranger, stranger, "secure connection"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run=^TestTrust$", "-test.v")
			cmd.Env = append(os.Environ(), "TRUST_TEST_URL="+repo.URL, "TRUST_TEST_CA="+test.caFile,
				"SSL_CERT_FILE="+test.system, "SSL_CERT_DIR="+t.TempDir())
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), test.want) {
				t.Errorf("resolving said, with %v, want %q:\n%s", err, test.want, out)
			}
		})
	}
}

func resolveAs(t *testing.T, url string) {
	t.Helper()
	s, err := New(Options{
		Policy: job.Policy{Repos: []string{url}}, ReposDir: t.TempDir(), Git: job.Git{CAFile: os.Getenv("TRUST_TEST_CA"), Timeout: time.Minute},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Resolve(t.Context(), Request{Repo: url, Version: "v1"}); err != nil {
		t.Log(err)
		return
	}
	t.Log("resolved")
}
