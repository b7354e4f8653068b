package providers

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/dirhash"
)

// checksum is a package's h1 hash, in hexadecimal: a lock file's base64 may
// hold slashes, and this is used as a file name.
type checksum string

// parseChecksum reads "h1:BASE64". Other schemes cannot be compared with an
// unpacked package.
func parseChecksum(text string) (checksum, bool) {
	encoded, ok := strings.CutPrefix(text, "h1:")
	if !ok {
		return "", false
	}
	sum, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || len(sum) != sha256.Size {
		return "", false
	}
	return checksum(hex.EncodeToString(sum)), true
}

// hashPackage reads a whole package. It fails for one that holds no file.
func hashPackage(dir string) (checksum, error) {
	h1, err := dirhash.HashDir(dir, "", dirhash.Hash1)
	if err != nil {
		return "", err
	}
	sum, ok := parseChecksum(h1)
	if !ok {
		return "", fmt.Errorf("%s is no h1 checksum", h1)
	}
	return sum, nil
}
