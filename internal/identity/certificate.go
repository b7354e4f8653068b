package identity

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/trust"
)

// certificateKind begins each certificate. The database knows certificates by its first words.
const certificateKind = "tendril-identity-certificate-1"

// CertificateFor is how long a certificate is valid unless its certifier says otherwise, and
// MaxCertificate the longest.
const (
	CertificateFor = 24 * time.Hour
	MaxCertificate = 7 * 24 * time.Hour
)

// certificateFile is the name of a certificate's file in an agent's data directory.
const certificateFile = "identity.certificate"

// Certificate says that an agent may have the identity of a cluster. Its one line of text holds no
// secret: it names the key of the one agent that can use it.
type Certificate struct {
	Cluster string `json:"cluster"` // its name, as agents note it
	// Key is the fingerprint of the agent's own key, as agentkey.ParseFingerprint reads it.
	Key string `json:"key"`
	// Identity is the public half that the agent takes, as ParseAccepted reads it.
	Identity string    `json:"identity"`
	From     time.Time `json:"from"`
	Until    time.Time `json:"until"`
	// Certifier is the public key that signs it.
	Certifier string `json:"certifier"`
}

// Sign writes the certificate; Certifier is set here.
func (c Certificate) Sign(by ed25519.PrivateKey) (string, error) {
	public, is := by.Public().(ed25519.PublicKey)
	if !is {
		return "", errors.New("sign the certificate: this is no Ed25519 key")
	}
	var err error
	if c.Certifier, err = trust.SignerText(public); err != nil {
		return "", err
	}
	if err := c.check(); err != nil {
		return "", err
	}
	return trust.Sign(certificateKind, c, by)
}

func (c Certificate) check() error {
	if strings.TrimSpace(c.Cluster) == "" {
		return errors.New("the certificate names no cluster")
	}
	if _, err := agentkey.ParseFingerprint(c.Key); err != nil {
		return fmt.Errorf("the agent's key: %w", err)
	}
	if _, err := ParseAccepted(c.Identity); err != nil {
		return fmt.Errorf("the identity: %w", err)
	}
	if d := c.Until.Sub(c.From); d <= 0 || d > MaxCertificate {
		return fmt.Errorf("a certificate is valid for at most %d hours", int(MaxCertificate.Hours()))
	}
	return nil
}

// Allows reports whether the certificate is for an identity with this public half.
func (c Certificate) Allows(public string) bool {
	accepted, err := ParseAccepted(c.Identity)
	return err == nil && accepted.Is(public)
}

// Certifiers are the keys that an agent's policy.identity_certifiers name. The zero value
// verifies nothing.
type Certifiers []ed25519.PublicKey

// ParseCertifiers reads public keys ssh-ed25519 AAAA….
func ParseCertifiers(texts []string) (all Certifiers, err error) {
	for _, text := range texts {
		key, err := trust.ParseSigner(text)
		if err != nil {
			return nil, fmt.Errorf("policy.identity_certifiers: %q %w", text, err)
		}
		all = append(all, key)
	}
	return all, nil
}

// Verify reads a certificate for the agent with this key, which belongs to this cluster. It fails
// unless one of the certifiers has signed the certificate, for that agent and cluster, and it is
// valid now.
func (all Certifiers) Verify(text, cluster string, key ed25519.PublicKey, now time.Time) (Certificate, error) {
	c, err := all.VerifyForAny(text, key, now)
	if err == nil && c.Cluster != cluster {
		err = fmt.Errorf("it is for the cluster %.200q, and this agent belongs to %q", c.Cluster, cluster)
	}
	return c, err
}

// VerifyForAny is Verify where the agent does not know its cluster yet.
func (all Certifiers) VerifyForAny(text string, key ed25519.PublicKey, now time.Time) (Certificate, error) {
	var c Certificate
	signedBy, err := trust.Open(certificateKind, text, &c)
	if err != nil {
		return c, fmt.Errorf("it %w", err)
	}
	// The key that the certificate names is a hint for people. These decide.
	if !slices.ContainsFunc(all, signedBy) {
		return c, fmt.Errorf("no key in this agent's policy.identity_certifiers has signed it; it names the key %.200q", c.Certifier)
	}
	if err := c.check(); err != nil {
		return c, err
	}
	expected, err := agentkey.ParseFingerprint(c.Key)
	switch {
	case err != nil:
		return c, err
	case !expected.Matches(key):
		return c, fmt.Errorf("it is for another agent, whose key has the fingerprint %s", c.Key)
	case now.Before(c.From.Add(-certificateSkew)):
		return c, fmt.Errorf("it is valid from %s on: compare the clocks of the two machines", c.From.UTC().Format(time.RFC3339))
	case !now.Before(c.Until):
		return c, fmt.Errorf("it has expired, at %s: have another one made", c.Until.UTC().Format(time.RFC3339))
	}
	return c, nil
}

// certificateSkew is by how much the clocks of certifier and agent may differ.
const certificateSkew = 5 * time.Minute

// AcceptCertificate notes in an agent's data directory that it accepts the identity that a
// certificate names, and the certificate, which the agent then presents. The caller has verified it.
func AcceptCertificate(dir, text string, c Certificate) error {
	path := filepath.Join(dir, certificateFile)
	if err := durable.WriteFile(path, []byte(text+"\n")); err != nil {
		return fmt.Errorf("keep the certificate: %w", err)
	}
	if err := likeDirectory(path); err != nil {
		return err
	}
	return Accept(dir, c.Identity)
}

// ReadCertificate reads the certificate that AcceptCertificate has kept, "" where it has not.
func ReadCertificate(dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, certificateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the certificate: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
