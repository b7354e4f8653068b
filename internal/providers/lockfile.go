package providers

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"golang.org/x/mod/sumdb/dirhash"
)

// LockFileName is the engine's lock file, beside the root module.
const LockFileName = ".terraform.lock.hcl"

// maxLockFile is the size of a lock file that is read, in bytes. A provider
// takes about two thousand.
const maxLockFile = 1 << 20

// Lock is what a lock file says: the providers that it names, by address
// (HOST/NAMESPACE/TYPE).
type Lock map[string]Locked

// Locked is what a lock file accepts of a provider.
type Locked struct {
	Version string
	Hashes  []string // as written, "h1:…" of an unpacked package and "zh:…" of an archive
}

// ReadLock reads the lock file of a root module. Without one the error is
// fs.ErrNotExist. A symbolic link, which the engine would replace, and more
// than 1 MiB are refused.
func ReadLock(dir string) (Lock, error) {
	path := filepath.Join(dir, LockFileName)
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no ordinary file (%s); commit the file itself, not a link", LockFileName, info.Mode().Type())
	case info.Size() > maxLockFile:
		return nil, fmt.Errorf("%s has %d bytes, and more than %d are not read; create it again", LockFileName, info.Size(), maxLockFile)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseLock(content)
}

func parseLock(content []byte) (Lock, error) {
	file, diags := hclsyntax.ParseConfig(content, LockFileName, hcl.InitialPos)
	if diags.HasErrors() {
		return nil, diags
	}
	var written struct {
		Providers []struct {
			Address string   `hcl:"address,label"`
			Version string   `hcl:"version"`
			Hashes  []string `hcl:"hashes,optional"`
			Rest    hcl.Body `hcl:",remain"`
		} `hcl:"provider,block"`
		Rest hcl.Body `hcl:",remain"`
	}
	if diags := gohcl.DecodeBody(file.Body, nil, &written); diags.HasErrors() {
		return nil, diags
	}
	lock := make(Lock, len(written.Providers))
	for _, p := range written.Providers {
		lock[p.Address] = Locked{p.Version, p.Hashes}
	}
	return lock, nil
}

// platform is the last element of a package's path.
const platform = runtime.GOOS + "_" + runtime.GOARCH

// packages says, by slot, which h1 checksums the lock accepts. What the engine
// will refuse is left out.
func (l Lock) packages() map[slot][]checksum {
	accepted := make(map[slot][]checksum, len(l))
	for address, p := range l {
		at, ok := newSlot(address, p.Version)
		if !ok {
			continue
		}
		accepted[at] = []checksum{}
		for _, h := range p.Hashes {
			if sum, ok := parseChecksum(h); ok {
				accepted[at] = append(accepted[at], sum)
			}
		}
	}
	return accepted
}

// slot is the place of a package in the engine's layout, relative and with
// slashes: HOST/NAMESPACE/TYPE/VERSION/OS_ARCH.
type slot string

// newSlot refuses what is no such path. A lock file is the template author's.
func newSlot(provider, version string) (slot, bool) {
	elements := append(strings.Split(provider, "/"), version, platform)
	if len(elements) != slotDepth {
		return "", false
	}
	for _, e := range elements {
		if e == "" || strings.HasPrefix(e, ".") || strings.ContainsAny(e, "\\\x00") || e != path.Base(e) || len(e) > 255 {
			return "", false
		}
	}
	return slot(path.Join(elements...)), true
}

const slotDepth = 5

// in is the slot's path in a directory.
func (s slot) in(dir string) string { return filepath.Join(dir, filepath.FromSlash(string(s))) }

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
