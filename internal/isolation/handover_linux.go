package isolation

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// HandOver gives a run's uid a directory and all in it. No process of another
// run may be in there. What no run has made stays as it is: where the kernel does
// not forbid it, a template can give a file of root's a second name in there.
// In a directory that no run of ours had before, whatever has one name only is
// given.
//
// The group of a directory that is at rest says whose its content is, so the
// same uid gets it back in one step.
func (b *Block) HandOver(dir string, uid int, mode fs.FileMode) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("give %s to uid %d: %w", dir, uid, err)
	}
	defer root.Close() //nolint:errcheck // only looked at
	info, err := root.Stat(".")
	if err == nil && groupOf(info) != uid {
		err = b.handOverContent(root, uid, b.Has(groupOf(info)))
	}
	// Last of all: what was interrupted is done again.
	err = errors.Join(err, root.Chown(".", uid, uid), root.Chmod(".", mode))
	if err != nil {
		return fmt.Errorf("give %s to uid %d: %w", dir, uid, err)
	}
	return nil
}

func (b *Block) handOverContent(root *os.Root, uid int, hadRuns bool) error {
	return fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		switch {
		case !ok, info.Mode()&(fs.ModeDevice|fs.ModeCharDevice) != 0:
			return nil
		case b.Has(int(stat.Uid)):
		case hadRuns, info.Mode().IsRegular() && stat.Nlink > 1:
			return nil
		}
		return root.Lchown(name, uid, uid)
	})
}

// Shut takes a directory back from a run: from now on only root gets in, and
// its group says whose the content is.
func Shut(dir string) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("shut %s: %w", dir, err)
	}
	defer root.Close() //nolint:errcheck // only looked at
	if err := errors.Join(root.Chown(".", 0, -1), root.Chmod(".", 0o700)); err != nil {
		return fmt.Errorf("shut %s: %w", dir, err)
	}
	return nil
}

// Group is the gid of a directory, or 0 if that cannot be told.
func Group(dir string) int {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return 0
	}
	return groupOf(info)
}

func groupOf(info fs.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Gid)
	}
	return 0
}

// Owner is the uid of a directory, or -1 if that cannot be told.
func Owner(dir string) int {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return -1
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return -1
}
