// Package secretfile reads files that hold secrets: tokens, private keys,
// passwords, URLs with a password.
//
// It refuses a file that every user of the machine can read, because templates run
// there too. Group access is allowed: a kubelet mounts Secrets as root:fsGroup. A
// file has at most 64 KiB.
//
// The package must not know what a secret is for.
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
