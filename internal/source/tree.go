package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/tendril-run/tendril/internal/provision"
)

// limits keep one repository from using up the machine. A few kilobytes of git
// can stand for billions of files.
type limits struct {
	refs    int64 // bytes of references that a server may list; they are held in memory
	packs   int   // in a mirror, see prepare
	entries int   // files and directories
	bytes   int64 // of all files together
	depth   int   // of directories
}

var defaultLimits = limits{refs: 64 << 20, packs: 32, entries: 200_000, bytes: 4 << 30, depth: 64}

// maxLink is the longest target of a symbolic link, in bytes (PATH_MAX).
const maxLink = 4096

// malformed refuses a repository that git itself would not make, or one beyond
// our limits.
func malformed(format string, args ...any) error {
	return provision.Fail(provision.CodeCheckoutFailed,
		"template_source.repo: the repository's content is refused: "+printable(fmt.Sprintf(format, args...), 300), nil)
}

// written is what a work tree turned out to hold.
type written struct {
	templates  []string // directories with a template in them
	submodules []string
	entries    int
	bytes      int64
}

// writer writes the trees of one commit.
type writer struct {
	written
	objects objects
	limits  limits
}

// writeCommit empties dir and writes the tree of commit into it. No path or
// link of the repository reaches out of dir: every step goes through os.Root.
func writeCommit(ctx context.Context, o objects, commit plumbing.Hash, dir string, l limits) (_ *written, err error) {
	root, err := o.root(commit)
	if err != nil {
		return nil, err
	}
	top, err := emptied(dir)
	if err != nil {
		return nil, fmt.Errorf("empty the work directory %s: %w", dir, err)
	}
	defer func() { _ = top.Close() }()
	w := &writer{objects: o, limits: l}
	if err := w.tree(ctx, top, root, ".", 1); err != nil {
		return nil, err
	}
	return &w.written, nil
}

// emptied opens dir without anything in it.
func emptied(dir string) (*os.Root, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// An earlier template could have put a link in the directory's place.
	if info, err := os.Lstat(dir); err != nil || !info.IsDir() {
		return nil, errors.Join(err, errors.New("it is not a directory"))
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	entries, err := fs.ReadDir(root.FS(), ".")
	for _, entry := range entries {
		err = errors.Join(err, root.RemoveAll(entry.Name()))
	}
	if err != nil {
		_ = root.Close()
		return nil, err
	}
	return root, nil
}

// tree writes a directory's entries into dir, which lies at name.
func (w *writer) tree(ctx context.Context, dir *os.Root, hash plumbing.Hash, name string, depth int) error {
	if depth > w.limits.depth {
		return malformed("directories are nested deeper than %d", w.limits.depth)
	}
	entries, err := w.objects.tree(hash)
	if err != nil {
		return err
	}
	hasTemplate := false
	for _, entry := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if w.entries++; w.entries > w.limits.entries {
			return malformed("it has more than %d files and directories", w.limits.entries)
		}
		full := path.Join(name, entry.Name)
		if !validEntry(entry.Name) {
			return malformed("the name %q is not allowed in a work tree", full)
		}
		if err := w.entry(ctx, dir, entry, full, depth); err != nil {
			return err
		}
		hasTemplate = hasTemplate || isTemplate(entry.Name) && entry.Mode != filemode.Dir && entry.Mode != filemode.Submodule
	}
	if hasTemplate {
		w.templates = append(w.templates, name)
	}
	return nil
}

func (w *writer) entry(ctx context.Context, dir *os.Root, entry object.TreeEntry, full string, depth int) (err error) {
	defer func() {
		if errors.Is(err, fs.ErrExist) {
			err = malformed("%q is there twice", full)
		}
	}()
	switch entry.Mode {
	case filemode.Regular, filemode.Deprecated:
		return w.file(dir, entry, 0o644)
	case filemode.Executable:
		return w.file(dir, entry, 0o755)
	case filemode.Symlink:
		return w.link(dir, entry, full)
	case filemode.Submodule:
		w.submodules = append(w.submodules, full)
		return dir.Mkdir(entry.Name, 0o755)
	case filemode.Dir:
		if err := dir.Mkdir(entry.Name, 0o755); err != nil {
			return err
		}
		sub, err := dir.OpenRoot(entry.Name)
		if err != nil {
			return err
		}
		defer func() { _ = sub.Close() }()
		return w.tree(ctx, sub, entry.Hash, full, depth+1)
	default:
		return malformed("%q has the unknown mode %v", full, entry.Mode)
	}
}

func (w *writer) file(dir *os.Root, entry object.TreeEntry, mode os.FileMode) error {
	f, err := dir.OpenFile(entry.Name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	n, err := w.objects.copy(f, plumbing.BlobObject, entry.Hash, w.limits.bytes-w.bytes)
	if errors.Is(err, errTooLarge) {
		err = malformed("its files are larger than %d MB together", w.limits.bytes>>20)
	}
	w.bytes += n
	return errors.Join(err, f.Close())
}

func (w *writer) link(dir *os.Root, entry object.TreeEntry, full string) error {
	var target strings.Builder
	_, err := w.objects.copy(&target, plumbing.BlobObject, entry.Hash, maxLink)
	if errors.Is(err, errTooLarge) {
		return malformed("the target of the symbolic link %q is too long", full)
	}
	if err != nil {
		return err
	}
	if !staysInside(path.Dir(full), target.String()) {
		return refusePath("template_source.repo: the symbolic link %s → %s leads out of the checkout; links must stay within the repository",
			printable(full, 120), printable(target.String(), 120))
	}
	return dir.Symlink(target.String(), entry.Name)
}

// staysInside reports whether a link in directory dir cannot lead out of the
// work tree, whatever other links there are. Its target may climb first, for
// above it are only real directories, and then descend: each link on that way
// obeys the same rule. A target that climbs again after it went down is
// refused, because from where it climbs depends on what is there by then.
func staysInside(dir, target string) bool {
	if target == "" || path.IsAbs(target) || strings.ContainsRune(target, 0) {
		return false
	}
	down := false
	for segment := range strings.SplitSeq(target, "/") {
		if segment == ".." && down {
			return false
		}
		down = down || segment != ".." && segment != "." && segment != ""
	}
	return filepath.IsLocal(path.Join(dir, target))
}

// validEntry refuses names that mean something else to a file system or to
// git: no checkout contains a .git that a later git would obey.
func validEntry(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= 255 &&
		!strings.EqualFold(name, ".git") && !strings.EqualFold(name, "git~1") &&
		!strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r == '\\' || unicode.IsControl(r) })
}

// isTemplate reports whether Terraform reads a file of that name.
func isTemplate(name string) bool {
	return strings.HasSuffix(name, ".tf") || strings.HasSuffix(name, ".tf.json")
}
