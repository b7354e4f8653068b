package providers

import (
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// lockFileName is the engine's lock file, beside the root module.
const lockFileName = ".terraform.lock.hcl"

// platform is the last element of a package's path.
const platform = runtime.GOOS + "_" + runtime.GOARCH

// locked says, by slot, which checksums a lock file accepts.
type locked map[slot][]checksum

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

// parseLockFile reads a lock file. Of one that the engine will refuse, it
// returns what it understands.
func parseLockFile(content []byte) locked {
	file, diags := hclsyntax.ParseConfig(content, lockFileName, hcl.InitialPos)
	if diags.HasErrors() {
		return nil
	}
	var lock struct {
		Providers []struct {
			Address string   `hcl:"address,label"`
			Version string   `hcl:"version"`
			Hashes  []string `hcl:"hashes,optional"`
			Rest    hcl.Body `hcl:",remain"`
		} `hcl:"provider,block"`
		Rest hcl.Body `hcl:",remain"`
	}
	if gohcl.DecodeBody(file.Body, nil, &lock).HasErrors() {
		return nil
	}
	accepted := make(locked, len(lock.Providers))
	for _, p := range lock.Providers {
		s, ok := newSlot(p.Address, p.Version)
		if !ok {
			continue
		}
		accepted[s] = []checksum{}
		for _, h := range p.Hashes {
			if sum, ok := parseChecksum(h); ok {
				accepted[s] = append(accepted[s], sum)
			}
		}
	}
	return accepted
}
