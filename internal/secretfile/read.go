// Package secretfile reads the files in which both programs are given secrets.
//
// It must not know what the secrets are for.
package secretfile

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
)

// Read reads a secret's file and refuses one that everybody on the
// machine may read, for Terraform, and so every template, runs on it.
func Read(path string) (string, error) {
	info, err := os.Stat(path) // through links: Kubernetes mounts secrets as such
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("is not a regular file")
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		if _, err := os.Lstat(filepath.Join(filepath.Dir(path), "..data")); err == nil { // as Kubernetes mounts them
			return "", fmt.Errorf("others may read it (mode %04o); give the Secret's volume defaultMode: 0440, and the pod an fsGroup", mode)
		}
		return "", fmt.Errorf("others may read it (mode %04o); run: chmod o= %s", mode, strconv.Quote(path))
	}
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", err)
	}
	defer func() { _ = file.Close() }()
	const longest = 64 << 10 // a token has some 50 bytes, a private key some thousand
	data, err := io.ReadAll(io.LimitReader(file, longest))
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", err)
	}
	return string(data), nil
}
