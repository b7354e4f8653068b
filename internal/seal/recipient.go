package seal

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
	"filippo.io/age/agessh"
	"filippo.io/age/armor"
)

// ParseRecipient reads a public key to which something can be sealed: age1…
// (X25519) or "ssh-ed25519 AAAA…".
func ParseRecipient(text string) (age.Recipient, error) {
	text = strings.TrimSpace(text)
	switch {
	case strings.HasPrefix(text, "age1"):
		if recipient, err := age.ParseX25519Recipient(text); err == nil {
			return recipient, nil
		}
	case strings.HasPrefix(text, "ssh-ed25519 "):
		if recipient, err := agessh.ParseRecipient(text); err == nil {
			return recipient, nil
		}
	}
	return nil, fmt.Errorf("not a public key of the kinds age1… or ssh-ed25519 AAAA…")
}

// Fingerprint is what people compare: SHA256:… of the public key as text,
// without the comment of an SSH key.
func Fingerprint(public string) string {
	fields := strings.Fields(public)
	digest := sha256.Sum256([]byte(strings.Join(fields[:min(2, len(fields))], " ")))
	return "SHA256:" + base64.RawStdEncoding.EncodeToString(digest[:])
}

// To seals a text to a public key, as binary age message.
func To(recipient age.Recipient, plain []byte) ([]byte, error) {
	var out bytes.Buffer
	out.Grow(len(plain) + len(plain)/1024 + 1024) // what sealing adds is less: it may be a large state
	if err := to(&out, recipient, plain); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// Armoured is To as text, for what people paste.
func Armoured(recipient age.Recipient, plain []byte) (string, error) {
	var out bytes.Buffer
	a := armor.NewWriter(&out)
	if err := to(a, recipient, plain); err != nil {
		return "", err
	}
	if err := a.Close(); err != nil {
		return "", fmt.Errorf("seal: %w", err)
	}
	return out.String(), nil
}

func to(out io.Writer, recipient age.Recipient, plain []byte) error {
	w, err := age.Encrypt(out, recipient)
	if err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	if _, err := w.Write(plain); err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	return nil
}

// unarmoured reads a message in either form.
func unarmoured(r io.Reader) io.Reader {
	b := bufio.NewReader(r)
	if start, _ := b.Peek(len(armor.Header)); string(start) == armor.Header {
		return armor.NewReader(b)
	}
	return b
}
