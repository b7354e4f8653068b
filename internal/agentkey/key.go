package agentkey

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/secretfile"
)

// The names of the key's files in the data directory.
const (
	File     = "agent.key"
	nextFile = "agent.key.next"
)

const pemType = "PRIVATE KEY"

// Key is an agent's Ed25519 key. The zero value is no key.
type Key struct{ private ed25519.PrivateKey }

// Create makes a key and writes it to agent.key in the directory, which must exist.
// It replaces nothing: fs.ErrExist where there is one.
func Create(dir string) (Key, error) { return create(filepath.Join(dir, File)) }

// Load reads agent.key in the directory: fs.ErrNotExist where there is none, and an
// error where others may read it.
func Load(dir string) (Key, error) { return load(filepath.Join(dir, File)) }

// Next is the key that a rotation brings into force: the one that an earlier rotation
// left unfinished, or a new one.
func Next(dir string) (Key, error) {
	path := filepath.Join(dir, nextFile)
	key, err := load(path)
	if errors.Is(err, fs.ErrNotExist) {
		return create(path)
	}
	return key, err
}

// Pending is the key of a rotation that has not ended: fs.ErrNotExist where there is none.
func Pending(dir string) (Key, error) { return load(filepath.Join(dir, nextFile)) }

// Promote puts the next key in place of the current one, which is lost. Call it when the
// database knows the next one.
func Promote(dir string) error {
	if err := durable.Rename(filepath.Join(dir, nextFile), filepath.Join(dir, File)); err != nil {
		return fmt.Errorf("put the agent's next key in force: %w", err)
	}
	return nil
}

// Abandon removes the next key, which no database knows.
func Abandon(dir string) error {
	if err := os.Remove(filepath.Join(dir, nextFile)); err != nil {
		return fmt.Errorf("remove the agent's next key: %w", err)
	}
	return nil
}

// Made is when the key was made: fs.ErrNotExist where there is none.
func Made(dir string) (time.Time, error) {
	info, err := os.Stat(filepath.Join(dir, File))
	if err != nil {
		return time.Time{}, fmt.Errorf("inspect the agent's key: %w", err)
	}
	return info.ModTime(), nil
}

// Private is the private half, nil of no key. It must not leave the agent's process.
func (k Key) Private() ed25519.PrivateKey { return k.private }

// Public is the public half, 32 bytes.
func (k Key) Public() ed25519.PublicKey { return k.private.Public().(ed25519.PublicKey) }

// Fingerprint is SHA-256 of the public half, as 64 hexadecimal digits.
func (k Key) Fingerprint() string { return Fingerprint(k.Public()) }

// Words is the fingerprint's beginning as eight words.
func (k Key) Words() string { return Words(k.Public()) }

// Sign returns the signature of a message.
func (k Key) Sign(message []byte) []byte { return ed25519.Sign(k.private, message) }

func create(path string) (Key, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return Key{}, fmt.Errorf("make the agent's key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return Key{}, fmt.Errorf("encode the agent's key: %w", err)
	}
	if err := durable.CreateFile(path, pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: der})); err != nil {
		return Key{}, fmt.Errorf("write the agent's key: %w", err)
	}
	return Key{private}, nil
}

func load(path string) (Key, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return Key{}, fmt.Errorf("read the agent's key: %w", err)
	}
	text, err := secretfile.Read(path)
	if err != nil {
		return Key{}, fmt.Errorf("%s %w", path, err)
	}
	block, _ := pem.Decode([]byte(text))
	if block == nil || block.Type != pemType {
		return Key{}, fmt.Errorf("%s holds no private key in PEM", path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return Key{}, fmt.Errorf("%s holds no private key in PKCS#8", path) // the parser's words may quote
	}
	private, is := parsed.(ed25519.PrivateKey)
	if !is {
		return Key{}, fmt.Errorf("%s holds a key that is not Ed25519", path)
	}
	return Key{private}, nil
}
