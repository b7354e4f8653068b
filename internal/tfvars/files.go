package tfvars

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Limits on what is read of a template. A template is a stranger's: its files
// may be links to devices, or larger than memory.
const (
	maxFile  = 4 << 20
	maxTotal = 16 << 20
)

// files are the names, within the template's directory, of what an engine
// reads there, in the order it reads them.
type files struct {
	config    []string // *.tf and *.tf.json
	overrides []string // override.tf, *_override.tf and so on: merged over config
	autoload  []string // terraform.tfvars[.json], then *.auto.tfvars[.json]
}

// listFiles sorts the directory's entries by the engine's naming rules.
func listFiles(dir, engine string) (files, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return files{}, fmt.Errorf("list the template's files: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if !entry.IsDir() {
			names = append(names, entry.Name())
		}
	}

	var found files
	for _, name := range names {
		if strings.HasSuffix(name, ".auto.tfvars") || strings.HasSuffix(name, ".auto.tfvars.json") {
			found.autoload = append(found.autoload, name)
			continue
		}
		base, ok := configName(name, engine)
		switch {
		case !ok || engine == "tofu" && slices.Contains(names, tofuTwin(name)):
		case base == "override" || strings.HasSuffix(base, "_override"):
			found.overrides = append(found.overrides, name)
		default:
			found.config = append(found.config, name)
		}
	}
	for _, name := range []string{"terraform.tfvars.json", "terraform.tfvars"} {
		if slices.Contains(names, name) {
			found.autoload = slices.Insert(found.autoload, 0, name)
		}
	}
	return found, nil
}

// configName reports whether the engine reads the file as configuration, and
// its name without the extension.
func configName(name, engine string) (base string, ok bool) {
	if strings.HasPrefix(name, ".") || strings.HasSuffix(name, "~") ||
		strings.HasPrefix(name, "#") && strings.HasSuffix(name, "#") {
		return "", false // hidden, or an editor's copy
	}
	extensions := []string{".tf", ".tf.json"}
	if engine == "tofu" {
		extensions = append(extensions, ".tofu", ".tofu.json")
	}
	for _, extension := range extensions {
		if base, ok := strings.CutSuffix(name, extension); ok {
			return base, true
		}
	}
	return "", false
}

// tofuTwin is the file that OpenTofu reads instead of a .tf file, if it exists.
func tofuTwin(name string) string {
	if base, ok := strings.CutSuffix(name, ".tf.json"); ok {
		return base + ".tofu.json"
	}
	if base, ok := strings.CutSuffix(name, ".tf"); ok {
		return base + ".tofu"
	}
	return ""
}

// reader reads the files of one directory until they are too much.
type reader struct {
	dir  string
	left int64 // bytes that may still be read
}

func newReader(dir string) *reader { return &reader{dir: dir, left: maxTotal} }

func (r *reader) read(name string) ([]byte, error) {
	path := filepath.Join(r.dir, name)
	// Opening a pipe or a device could block or worse, so look first.
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("is not a regular file")
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	defer func() { _ = file.Close() }()

	limit := min(maxFile, r.left)
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("is too large; at most %d bytes a file and %d in all are read", maxFile, maxTotal)
	}
	r.left -= int64(len(data))
	return data, nil
}
