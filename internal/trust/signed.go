package trust

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"golang.org/x/crypto/ssh"
)

// MaxText is the most bytes of a certificate or an order as text.
const MaxText = 8192

var encoding = base64.RawURLEncoding

// sign writes KIND.PAYLOAD.SIGNATURE, the last two in base64.
func sign(kind string, payload any, by ed25519.PrivateKey) (string, error) {
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

// open reads what sign wrote into payload; check verifies it then.
func open(kind, text string, payload any) (check func(ed25519.PublicKey) bool, err error) {
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

// signerText is a public key as ssh has it.
func signerText(key ed25519.PublicKey) (string, error) {
	public, err := ssh.NewPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("write the public key: %w", err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(public))), nil
}

// parseSigner reads "ssh-ed25519 AAAA…".
func parseSigner(text string) (ed25519.PublicKey, error) {
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
