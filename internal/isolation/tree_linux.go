package isolation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// The trees here are of somebody who may mean harm: nested deeper than there are
// descriptors, with more entries than there is memory, and, in /tmp, changed
// while they are looked at. So each step is by a directory that is open and one
// name in it, without following a link, and few names are held at once.
const (
	// Deepest is how many directories within each other are looked into. No
	// engine makes so many.
	Deepest = 256
	// batch is how many names are read at once.
	batch = 256
)

// Entry is what Walk shows.
type Entry struct {
	Path  string // within the tree
	Depth int    // 0 for what is in the tree's top
	Stat  unix.Stat_t
	// Err is why it could not be looked at, or into.
	Err error

	dir  *os.File
	name string
}

// IsDir reports whether it is a directory, and no link to one.
func (e Entry) IsDir() bool { return e.Stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// IsRegular reports whether it is a plain file.
func (e Entry) IsRegular() bool { return e.Stat.Mode&unix.S_IFMT == unix.S_IFREG }

// Remove removes it, with all that is below.
func (e Entry) Remove() error { return removeIn(context.Background(), e.dir, e.name) }

func (e Entry) lchown(uid int) error {
	if err := unix.Fchownat(int(e.dir.Fd()), e.name, uid, uid, unix.AT_SYMLINK_NOFOLLOW); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &os.PathError{Op: "chown", Path: e.Path, Err: err}
	}
	return nil
}

// Walk shows what is in a directory and, where visit says so, what is below, each
// directory before its content. A tree that is not there is empty; what vanishes
// meanwhile is passed over. The first error of visit ends it.
func Walk(dir string, visit func(Entry) (down bool, err error)) error {
	top, err := openDir(unix.AT_FDCWD, dir)
	if vanished(err) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer top.Close() //nolint:errcheck // only read
	if err := walk(top, "", 0, visit); err != nil {
		return fmt.Errorf("look through %s: %w", dir, err)
	}
	return nil
}

func walk(dir *os.File, path string, depth int, visit func(Entry) (bool, error)) error {
	for {
		names, err := dir.Readdirnames(batch)
		for _, name := range names {
			if err := walkTo(dir, path, name, depth, visit); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			_, err := visit(Entry{Path: path, Depth: depth, Err: err})
			return err
		}
	}
}

func walkTo(dir *os.File, path, name string, depth int, visit func(Entry) (bool, error)) error {
	e := Entry{Path: filepath.Join(path, name), Depth: depth, dir: dir, name: name}
	tell := func(err error) error {
		if e.Err = err; vanished(err) {
			return nil
		}
		_, err = visit(e)
		return err
	}
	if err := unix.Fstatat(int(dir.Fd()), name, &e.Stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return tell(err)
	}
	down, err := visit(e)
	if err != nil || !down || !e.IsDir() || depth+1 >= Deepest {
		return err
	}
	below, err := openDir(int(dir.Fd()), name)
	if err != nil {
		return tell(err)
	}
	defer below.Close() //nolint:errcheck // only read
	return walk(below, e.Path, depth+1, visit)
}

// vanished: it is gone, or something else has taken its place.
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

func passOver(err error) error {
	if vanished(err) {
		return nil
	}
	return err
}

// openDir opens a directory that is no link.
func openDir(parent int, name string) (*os.File, error) {
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// RemoveAll is os.RemoveAll for trees that templates have made. It holds few more
// than Deepest descriptors: what is nested deeper is moved up first.
func RemoveAll(path string) error { return RemoveAllUntil(context.Background(), path) }

// RemoveAllUntil is RemoveAll that gives up with ctx: a tree can be so large that
// it takes minutes.
func RemoveAllUntil(ctx context.Context, path string) error {
	parent, err := os.Open(filepath.Dir(path)) //nolint:gosec // our own path
	if vanished(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close() //nolint:errcheck // only read
	return removeIn(ctx, parent, filepath.Base(path))
}

func removeIn(ctx context.Context, parent *os.File, name string) error {
	if err := unlink(parent, name); !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	top, err := openToEmpty(parent, name)
	if err != nil {
		return passOver(err)
	}
	defer top.Close() //nolint:errcheck // only read
	r := &remover{stopped: ctx.Err, top: top, prefix: ".removed-" + uuid.NewString() + "-"}
	if err := r.empty(top, 1); err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return unlink(parent, name)
}

// unlink removes a file or an empty directory. That one is not empty is
// ENOTEMPTY; that there is none is no error.
func unlink(dir *os.File, name string) error {
	err := unix.Unlinkat(int(dir.Fd()), name, 0)
	if errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &os.PathError{Op: "remove", Path: name, Err: err}
	}
	return nil
}

// openToEmpty opens a directory and keeps others from it, who could go on filling
// it, and what its maker has forbidden himself from getting in the way.
func openToEmpty(parent *os.File, name string) (*os.File, error) {
	dir, err := openDir(int(parent.Fd()), name)
	if errors.Is(err, fs.ErrPermission) {
		// As root this is never so; as its owner there is nobody to deceive.
		_ = unix.Fchmodat(int(parent.Fd()), name, 0o700, 0)
		dir, err = openDir(int(parent.Fd()), name)
	}
	if err != nil {
		return nil, err
	}
	// What this does not help with shows when something cannot be removed.
	if os.Geteuid() == 0 {
		_ = dir.Chown(0, 0)
	}
	_ = dir.Chmod(0o700)
	return dir, nil
}

// remover empties the directory top.
type remover struct {
	stopped func() error
	top     *os.File
	prefix  string // of what is moved there
	moved   int
}

// empty removes what is in a directory, for as long as something can be.
func (r *remover) empty(dir *os.File, depth int) error {
	for {
		if err := r.stopped(); err != nil {
			return err
		}
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
		names, err := dir.Readdirnames(batch)
		if len(names) == 0 {
			return passOver(noEOF(err))
		}
		var failed error
		progress := false
		for _, name := range names {
			if err := r.remove(dir, name, depth); err != nil {
				failed = err
			} else {
				progress = true
			}
		}
		if !progress {
			return failed
		}
	}
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (r *remover) remove(dir *os.File, name string, depth int) error {
	if err := unlink(dir, name); !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	below, err := openToEmpty(dir, name)
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer below.Close() //nolint:errcheck // only read
	if depth >= Deepest {
		r.moved++
		if err := unix.Renameat(int(dir.Fd()), name, int(r.top.Fd()), fmt.Sprint(r.prefix, r.moved)); err != nil {
			return &os.PathError{Op: "move up", Path: name, Err: err}
		}
		return nil
	}
	if err := r.empty(below, depth+1); err != nil {
		return err
	}
	return unlink(dir, name)
}
