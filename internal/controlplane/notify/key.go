package notify

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/google/uuid"
)

// keySize is in bytes.
const keySize = 32

// Key is a control plane's own: with it URLs are sealed, and the secrets that
// sign messages are made. Every process of a control plane has the same. Without
// it, webhooks have to be set up anew; the database never sees it.
type Key struct{ secret []byte }

// NewKey returns a key's file: text, with an end of line.
func NewKey() []byte {
	secret := make([]byte, keySize)
	_, _ = rand.Read(secret) // never fails
	return []byte(base64.StdEncoding.EncodeToString(secret) + "\n")
}

// ReadKey reads a key's file, which others must not be able to read.
func ReadKey(file string) (*Key, error) {
	const how = `make one with "umask 077; openssl rand -base64 32 > FILE"`
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("read the key file: %w; %s", err, how)
	}
	if info.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("the key file %s can be read by anybody (mode %#o): take that away with chmod 600, and make another key if it may have been read", file, info.Mode().Perm())
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the key file: %w", err)
	}
	secret, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(secret) != keySize {
		return nil, fmt.Errorf("the key file %s has no key: it must be %d random bytes in base64; %s", file, keySize, how)
	}
	return &Key{secret}, nil
}

// derive makes a key for one purpose.
func (k *Key) derive(purpose string) []byte {
	made, err := hkdf.Key(sha256.New, k.secret, nil, "tendril "+purpose, keySize)
	if err != nil {
		panic(err) // only for a length that nobody asks for
	}
	return made
}

// signing is what signs messages to a webhook.
func (k *Key) signing(webhook uuid.UUID, generation int) []byte {
	return k.derive(fmt.Sprintf("webhook signature %s %d", webhook, generation))
}

// Secret is what the receiver verifies signatures with, as it is shown.
func (k *Key) Secret(webhook uuid.UUID, generation int) string {
	return "whsec_" + base64.StdEncoding.EncodeToString(k.signing(webhook, generation))
}

// seal makes of a webhook's URL what only the key opens, and only for that webhook.
func (k *Key) seal(webhook uuid.UUID, url string) []byte {
	return k.box().Seal(nil, nil, []byte(url), webhook[:])
}

var errSealed = errors.New("the webhook's URL cannot be opened with this control plane's key: give it the key file that it had, or set the URL anew")

func (k *Key) open(webhook uuid.UUID, sealed []byte) (string, error) {
	url, err := k.box().Open(nil, nil, sealed, webhook[:])
	if err != nil {
		return "", errSealed // the library's error says nothing more
	}
	return string(url), nil
}

func (k *Key) box() cipher.AEAD {
	block, err := aes.NewCipher(k.derive("webhook URL"))
	if err != nil {
		panic(err) // only for a key of another length
	}
	box, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // only for a block of another size
	}
	return box
}
