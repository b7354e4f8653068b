package source

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
)

// checkPath returns template_source.path cleaned, "." for the root, or a
// Failure when it could leave a directory.
func checkPath(raw string) (string, error) {
	switch {
	case raw == "":
		return ".", nil
	case len(raw) > maxLink, strings.ContainsFunc(raw, unicode.IsControl), strings.Contains(raw, `\`):
		return "", refusePath("template_source.path: %q is not a path of directories separated by “/”", printable(raw, 120))
	case path.IsAbs(raw):
		return "", refusePath("template_source.path: %q is absolute; it must be relative to the repository's root", printable(raw, 120))
	case slices.Contains(strings.Split(raw, "/"), ".."):
		return "", refusePath("template_source.path: %q climbs with “..”; name the directory from the repository's root", printable(raw, 120))
	case !filepath.IsLocal(raw):
		return "", refusePath("template_source.path: %q leaves the repository", printable(raw, 120))
	}
	return path.Clean(raw), nil
}

// checkTemplate refuses a path that is no directory of the work tree with a
// template in it, and says where there are templates.
func checkTemplate(dir, name string, w *written) error {
	for _, submodule := range w.submodules {
		if name == submodule || strings.HasPrefix(name, submodule+"/") {
			return refusePath("template_source.path: %q lies in the submodule %s, and submodules are not fetched; name the submodule's own repository as the template's",
				name, printable(submodule, 120))
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("look for the template: %w", err)
	}
	defer func() { _ = root.Close() }()
	info, err := root.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return refusePath("template_source.path: there is no directory %q in the repository; %s", name, w.whereTemplates(name))
	case err != nil:
		return refusePath("template_source.path: %q cannot be used: %v; %s", name, err, w.whereTemplates(name))
	case !info.IsDir():
		return refusePath("template_source.path: %q is a file, not a directory; %s", name, w.whereTemplates(name))
	}
	entries, err := fs.ReadDir(root.FS(), name)
	if err != nil {
		return fmt.Errorf("look for the template: %w", err)
	}
	for _, entry := range entries {
		if isTemplate(entry.Name()) && !entry.IsDir() {
			return nil
		}
	}
	where := fmt.Sprintf("%q has", name)
	if name == "." {
		where = "the repository's root has"
	}
	return refusePath("template_source.path: %s no .tf or .tf.json file; %s", where, w.whereTemplates(name))
}

// whereTemplates lists directories that do hold a template, those with names
// like the one asked for first.
func (w *written) whereTemplates(name string) string {
	if len(w.templates) == 0 {
		return "no directory of the repository has any"
	}
	near := nearest(name, w.templates, 3)
	for _, dir := range w.templates {
		if !slices.Contains(near, dir) {
			near = append(near, dir)
		}
	}
	return "templates are in: " + some(near, 10)
}
