// Package personkey stores a person's key: agents seal what they hand out to it, and
// it signs orders to agents. The key is a file next to the contexts, made at its
// first use, with the certificate that an authority has issued for it, if any.
//
// The package must not know servers, nor what is sealed and signed.
package personkey

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/secretfile"
	"github.com/tendril-run/tendril/internal/trust"
)

// The files in the directory.
const (
	keyName         = "key"
	certificateName = "key.certificate"
)

// Key is a person's, as its directory has it.
type Key struct {
	trust.Person
	// Certificate vouches for the key; "" for none.
	Certificate string
	dir         string
}

// Path is the file of the key.
func (k Key) Path() string { return filepath.Join(k.dir, keyName) }

// Asks is what a snapshot names as requester: the certificate while it counts, else
// the key.
func (k Key) Asks(now time.Time) string {
	if c, err := trust.ParseCertificate(k.Certificate); err == nil && now.Before(c.Until) {
		return k.Certificate
	}
	return k.Recipient()
}

// Load reads the key of a directory; fs.ErrNotExist where there is none.
func Load(dir string) (Key, error) {
	k := Key{dir: dir}
	if _, err := os.Lstat(k.Path()); err != nil {
		return k, err
	}
	text, err := secretfile.Read(k.Path())
	if err != nil {
		return k, fmt.Errorf("your key %s %w", k.Path(), err)
	}
	if k.Person, err = trust.ParsePerson(k.Path(), text); err != nil {
		return k, err
	}
	certificate, err := os.ReadFile(filepath.Join(dir, certificateName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return k, fmt.Errorf("read your certificate: %w", err)
	}
	k.Certificate = strings.TrimSpace(string(certificate))
	return k, nil
}

// LoadOrMake is Load, and makes a key where there is none.
func LoadOrMake(dir string) (k Key, made bool, err error) {
	k, err = Load(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return k, false, err
	}
	person, err := trust.NewPerson()
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = durable.CreateFile(filepath.Join(dir, keyName), []byte(person.Secret()))
	}
	if errors.Is(err, fs.ErrExist) { // somebody was faster
		k, err = Load(dir)
		return k, false, err
	}
	if err != nil {
		return k, false, fmt.Errorf("make your key: %w", err)
	}
	k, err = Load(dir)
	return k, true, err
}

// Use keeps a certificate for the key, and refuses one for another key.
func (k Key) Use(certificate string) (trust.Certificate, error) {
	certificate = strings.TrimSpace(certificate)
	c, err := trust.ParseCertificate(certificate)
	switch {
	case err != nil:
		return c, fmt.Errorf("the certificate %w", err)
	case c.Recipient != k.Recipient() || c.Signer != "" && c.Signer != k.SignerKey():
		return c, fmt.Errorf("the certificate is for another key than yours, %s", k.Path())
	}
	if err := durable.WriteFile(filepath.Join(k.dir, certificateName), []byte(certificate+"\n")); err != nil {
		return c, fmt.Errorf("keep the certificate: %w", err)
	}
	return c, nil
}
