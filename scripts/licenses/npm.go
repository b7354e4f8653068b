package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// addBundled adds what a package of ours bundles, if it does.
func addBundled(parts map[string]*part, path string) error {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	all, err := bundled(path)
	if err != nil {
		return err
	}
	for _, p := range all {
		parts[p.name+" "+p.version] = &p
	}
	return nil
}

// bundled reads what make assets found in the bundles of the console's pages.
func bundled(path string) ([]part, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read what the console's bundles consist of: %w; run \"make assets\"", err)
	}
	var found []struct {
		Name, Version string
		Texts         map[string]string
	}
	if err := json.Unmarshal(content, &found); err != nil {
		return nil, fmt.Errorf("%s: %w; run \"make assets\"", path, err)
	}
	locked, err := locked(filepath.Join(filepath.Dir(path), "package-lock.json"))
	if err != nil {
		return nil, err
	}
	var parts []part
	for _, f := range found {
		if !locked[f.Name+" "+f.Version] {
			return nil, fmt.Errorf("%s has %s %s, which package-lock.json beside it has not; run \"make assets\"", path, f.Name, f.Version)
		}
		parts = append(parts, part{name: f.Name + " (npm)", version: f.Version, purl: packageURL("npm", f.Name, f.Version), texts: f.Texts})
	}
	return parts, nil
}

// locked are the packages, "NAME VERSION", that npm installs by a lock file.
func locked(path string) (map[string]bool, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read what npm installs: %w", err)
	}
	var lock struct {
		Packages map[string]struct{ Version string }
	}
	if err := json.Unmarshal(content, &lock); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	packages := map[string]bool{}
	for directory, p := range lock.Packages {
		if i := strings.LastIndex(directory, "node_modules/"); i >= 0 { // "" is who asks for them
			packages[directory[i+len("node_modules/"):]+" "+p.Version] = true
		}
	}
	return packages, nil
}
