package postgres

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// password returns the superuser's password of a data directory, making one
// first if create is set. It is on disk before initdb learns it, so that no
// crash can leave a database that nobody can enter.
func password(dir string, create bool) (string, error) {
	path := filepath.Join(dir, "password")
	text, err := os.ReadFile(path)
	if secret := strings.TrimSpace(string(text)); err == nil && secret != "" {
		return secret, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("reading the database password: %w", err)
	}
	if !create {
		return "", fmt.Errorf("%s is missing or empty, but the database in %s was made with it: put the file back, or move the directory away to begin anew", path, dir)
	}
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails
	secret := base64.RawURLEncoding.EncodeToString(random)
	if err := writeSecret(path, secret); err != nil {
		return "", fmt.Errorf("keeping the database password: %w", err)
	}
	return secret, nil
}

// writeSecret writes a 0600 file that is on disk, whole, when it returns.
func writeSecret(path, secret string) error {
	temp := path + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(secret + "\n")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(temp, path)
}
