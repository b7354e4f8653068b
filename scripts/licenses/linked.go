package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// part is one that is shipped within our programs, and of somebody else.
type part struct {
	name, version string
	// purl is how scanners call it: a package URL.
	purl string
	// texts are its licences and notices as they came, by file name.
	texts map[string]string
	// licenses are what the texts were found to be.
	licenses []string
}

// target is what is built for a platform, which is as linux/amd64.
type target struct {
	platform string
	packages []string
}

// bundle is the file in which a package of ours says whose work its files
// contain, which go list does not know of: make assets writes it.
const bundle = "vendored/licenses.json"

// listed is what of "go list" counts here.
type listed struct {
	Dir      string
	Standard bool
	Module   *struct {
		Path, Version, Dir string
		Main               bool
		Replace            *struct{ Path, Version string }
	}
}

// linked returns the modules of which some package is linked into the targets,
// what those packages of ours bundle, and the Go library.
func linked(targets []target) ([]part, error) {
	parts := map[string]*part{}
	for _, t := range targets {
		goos, goarch, ok := strings.Cut(t.platform, "/")
		if !ok {
			return nil, fmt.Errorf("platform %q: must be as linux/amd64", t.platform)
		}
		cmd := exec.CommandContext(context.Background(), "go", append([]string{"list", "-deps", "-json=Dir,Standard,Module", "--"}, t.packages...)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("list what is linked on %s: %w", t.platform, err)
		}
		decoder := json.NewDecoder(bytes.NewReader(out))
		for {
			var l listed
			if err := decoder.Decode(&l); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("read go list: %w", err)
			}
			if err := add(parts, l); err != nil {
				return nil, err
			}
		}
	}
	return sorted(parts), nil
}

// add adds the module of one package, with the texts between its directory and
// the module's: what a module holds of others has a licence of its own there.
func add(parts map[string]*part, l listed) error {
	var name, version, purl, top string
	switch {
	case l.Module != nil && l.Module.Main:
		return addBundled(parts, filepath.Join(l.Dir, bundle))
	case l.Module != nil:
		name, version, top = l.Module.Path, l.Module.Version, l.Module.Dir
		purl = packageURL("golang", name, version)
	case l.Standard:
		root, err := goroot()
		if err != nil {
			return err
		}
		name, version, top = "Go standard library", runtime.Version(), root
		purl = packageURL("golang", "stdlib", strings.TrimPrefix(version, "go"))
	default:
		return fmt.Errorf("%s belongs to no module", l.Dir)
	}
	p := parts[name]
	if p == nil {
		p = &part{name: name, version: version, purl: purl, texts: map[string]string{}}
		parts[name] = p
	}
	if l.Standard {
		// Below it are licences of what our builds do not link: BoringSSL's.
		return p.read(top, top)
	}
	for dir := l.Dir; ; dir = filepath.Dir(dir) {
		if err := p.read(top, dir); err != nil {
			return err
		}
		if dir == top || len(dir) <= len(top) {
			return nil
		}
	}
}

// packageURL is a name and version as https://github.com/package-url/purl-spec
// has them.
func packageURL(kind, name, version string) string {
	escape := strings.NewReplacer("%", "%25", "@", "%40", "+", "%2B", " ", "%20")
	return "pkg:" + kind + "/" + escape.Replace(name) + "@" + escape.Replace(version)
}

var legal = regexp.MustCompile(`(?i)^(un)?(licen[cs]es?|copying|notice|patents|copyright)([.-].*)?$`)

// read takes the licence files of a directory.
func (p *part) read(top, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look for the licence of %s: %w", p.name, err)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !legal.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		name, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		if _, known := p.texts[name]; known {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read the licence of %s: %w", p.name, err)
		}
		p.texts[name] = string(text)
	}
	return nil
}

// goroot is where the toolchain's library lies, and its licence.
func goroot() (string, error) {
	out, err := exec.CommandContext(context.Background(), "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("find the Go library: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

func sorted(parts map[string]*part) []part {
	var all []part
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		all = append(all, *parts[name])
	}
	return all
}

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
