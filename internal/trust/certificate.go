package trust

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/crypto/ssh"

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
	return Sign(certificateKind, c, p.signer)
}

func (c Certificate) check() error {
	if _, err := seal.ParseRecipient(c.Recipient); err != nil {
		return fmt.Errorf("recipient: %w", err)
	}
	if c.Signer != "" {
		if _, err := ParseSigner(c.Signer); err != nil {
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
	check, err := Open(certificateKind, text, &c)
	if err != nil {
		return c, err
	}
	authority, err := ParseSigner(c.Authority)
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

// MaxText is the most bytes of a certificate or an order as text.
const MaxText = 8192

var encoding = base64.RawURLEncoding

// Sign writes KIND.PAYLOAD.SIGNATURE, the last two in base64.
func Sign(kind string, payload any, by ed25519.PrivateKey) (string, error) {
	content, err := json.Marshal(payload)
	if err != nil {
		return "", fmt.Errorf("encode it: %w", err)
	}
	text := kind + "." + encoding.EncodeToString(content) + "." + encoding.EncodeToString(ed25519.Sign(by, signed(kind, content)))
	if len(text) > MaxText {
		return "", fmt.Errorf("it has %d bytes, at most %d are allowed", len(text), MaxText)
	}
	return text, nil
}

// signed is what a signature is over.
func signed(kind string, content []byte) []byte { return append([]byte(kind+"\n"), content...) }

// Open reads what Sign wrote into payload; check reports whether a key signed it.
func Open(kind, text string, payload any) (check func(ed25519.PublicKey) bool, err error) {
	parts := strings.Split(text, ".")
	if len(text) > MaxText || len(parts) != 3 || parts[0] != kind {
		return nil, fmt.Errorf("is no %s", kind)
	}
	content, err := encoding.Strict().DecodeString(parts[1])
	if err != nil {
		return nil, fmt.Errorf("is a damaged %s", kind)
	}
	signature, err := encoding.Strict().DecodeString(parts[2])
	if err != nil {
		return nil, fmt.Errorf("is a damaged %s", kind)
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields() // it may limit what the signer allowed
	if err := decoder.Decode(payload); err != nil {
		return nil, fmt.Errorf("is a %s that this program does not understand: %w", kind, err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, fmt.Errorf("is a damaged %s", kind)
	}
	return func(by ed25519.PublicKey) bool { return ed25519.Verify(by, signed(kind, content), signature) }, nil
}

// SignerText is a public key as ssh has it.
func SignerText(key ed25519.PublicKey) (string, error) {
	public, err := ssh.NewPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("write the public key: %w", err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(public))), nil
}

// ParseSigner reads "ssh-ed25519 AAAA…".
func ParseSigner(text string) (ed25519.PublicKey, error) {
	public, _, _, rest, err := ssh.ParseAuthorizedKey([]byte(text))
	if err != nil || len(rest) > 0 {
		return nil, fmt.Errorf("is no public key ssh-ed25519 AAAA…")
	}
	if key, ok := public.(ssh.CryptoPublicKey); ok {
		if key, ok := key.CryptoPublicKey().(ed25519.PublicKey); ok {
			return key, nil
		}
	}
	return nil, fmt.Errorf("is a %s key; only ssh-ed25519 keys sign here", public.Type())
}

const orderKind = "tendril-order-1"

// MaxOrder is the longest that an order may wait until it is carried out.
const MaxOrder = 8 * 24 * time.Hour

// Order is what a person signs to have a whole managed state replaced. It names all
// that it is about, and the version that it replaces, so that it can be carried
// out once.
type Order struct {
	Workspace uuid.UUID `json:"workspace"`
	Name      string    `json:"name"`
	// Command is push or rollback.
	Command string `json:"command"`
	// Over is the newest version of the state, which the order replaces; 0: there is
	// none.
	Over int64 `json:"over"`
	// Version is what a rollback returns to.
	Version int64 `json:"version,omitempty"`
	// Digest is SHA-256 of the state that a push brings, in hexadecimal.
	Digest string    `json:"digest,omitempty"`
	Until  time.Time `json:"until"`
	// Signer is the key that signs it, and Certificate what vouches for that, if the
	// agents name no key of people.
	Signer      string `json:"signer"`
	Certificate string `json:"certificate,omitempty"`
}

// Order signs an order; Signer is set here.
func (p Person) Order(o Order) (string, error) {
	o.Signer = p.SignerKey()
	return Sign(orderKind, o, p.signer)
}

// ParseOrder reads an order and checks its signature. It does not say whether the
// signer's orders count: ask a Keyring.
func ParseOrder(text string) (Order, error) {
	var o Order
	check, err := Open(orderKind, text, &o)
	if err != nil {
		return o, err
	}
	signer, err := ParseSigner(o.Signer)
	if err != nil {
		return o, fmt.Errorf("signer: %w", err)
	}
	if !check(signer) {
		return o, errors.New("was not signed by the key that it names")
	}
	return o, nil
}
