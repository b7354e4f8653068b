package trust

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/seal"
)

const certificateKind = "tendril-certificate-1"

// MaxCertificate is the longest that a certificate may count.
const MaxCertificate = 400 * 24 * time.Hour

// Certificate says that an authority vouches for a person's keys, for some
// workspaces and for a time.
type Certificate struct {
	ID   string `json:"id"`
	Name string `json:"name"` // whose; for people
	// Recipient is the key to which may be sealed, age1… or ssh-ed25519 ….
	Recipient string `json:"recipient"`
	// Signer is the key ssh-ed25519 … whose orders count; "" for none.
	Signer string `json:"signer,omitempty"`
	// Workspaces are as ParseWorkspaces reads them.
	Workspaces []string  `json:"workspaces"`
	From       time.Time `json:"from"`
	Until      time.Time `json:"until"`
	// Authority is the public key that signs it.
	Authority string `json:"authority"`
}

// IsCertificate reports whether a text says that it is one.
func IsCertificate(text string) bool { return strings.HasPrefix(text, certificateKind+".") }

// Certify issues a certificate; ID and Authority are set here.
func (p Person) Certify(c Certificate) (string, error) {
	c.ID, c.Authority = strings.ToLower(rand.Text()[:20]), p.SignerKey()
	if err := c.check(); err != nil {
		return "", err
	}
	return sign(certificateKind, c, p.signer)
}

func (c Certificate) check() error {
	if _, err := seal.ParseRecipient(c.Recipient); err != nil {
		return fmt.Errorf("recipient: %w", err)
	}
	if c.Signer != "" {
		if _, err := parseSigner(c.Signer); err != nil {
			return fmt.Errorf("signer: %q %w", c.Signer, err)
		}
	}
	if len(c.Workspaces) == 0 {
		return errors.New("workspaces: it is for none")
	}
	for _, text := range c.Workspaces {
		if _, err := ParseWorkspaces(text); err != nil {
			return fmt.Errorf("workspaces: %w", err)
		}
	}
	if c.ID == "" || strings.TrimSpace(c.Name) == "" {
		return errors.New("it names nobody")
	}
	if d := c.Until.Sub(c.From); d <= 0 || d > MaxCertificate {
		return fmt.Errorf("it must end after it begins, and within %d days", int(MaxCertificate.Hours()/24))
	}
	return nil
}

// ParseCertificate reads a certificate and checks that its authority signed it. It
// does not say whether that authority counts: ask a Keyring.
func ParseCertificate(text string) (Certificate, error) {
	var c Certificate
	check, err := open(certificateKind, text, &c)
	if err != nil {
		return c, err
	}
	authority, err := parseSigner(c.Authority)
	if err != nil {
		return c, fmt.Errorf("authority: %w", err)
	}
	if !check(authority) {
		return c, errors.New("was not signed by the authority that it names")
	}
	return c, c.check()
}

// counts fails unless the certificate is for a workspace, now.
func (c Certificate) counts(name string, id uuid.UUID, now time.Time) error {
	switch {
	case now.Before(c.From):
		return fmt.Errorf("the certificate %s of %s counts from %s on", c.ID, c.Name, c.From.Format(time.RFC3339))
	case !now.Before(c.Until):
		return fmt.Errorf("the certificate %s of %s has expired, at %s: have it issued again", c.ID, c.Name, c.Until.Format(time.RFC3339))
	case !slices.ContainsFunc(c.Workspaces, func(text string) bool {
		w, err := ParseWorkspaces(text)
		return err == nil && w.Match(name, id)
	}):
		return fmt.Errorf("the certificate %s of %s is for %s, not for this workspace", c.ID, c.Name, strings.Join(c.Workspaces, ", "))
	}
	return nil
}
