package policyhook

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Executable reports why a path is no program that can be a hook. The error
// begins with the path.
func Executable(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%q is no absolute path", path)
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s does not exist", path)
	case err != nil:
		return fmt.Errorf("%s cannot be read: %w", path, err)
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return fmt.Errorf("%s is not an executable file", path)
	}
	return nil
}

// SearchPath is the PATH of hooks, where they find programs that they name without
// a directory. The agent's own PATH may have directories that templates write to.
const SearchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// User is who runs templates.
type User struct {
	UID    int
	Groups []int
}

// Self is the user of this process.
func Self() User {
	groups, _ := os.Getgroups() // which Linux always answers
	return User{UID: os.Geteuid(), Groups: append(groups, os.Getegid())}
}

// Guarded reports how a user could replace the program, one of its arguments that
// is a path, or a program that it finds by SearchPath, and so what judges the user's
// own plans. From root nothing can be guarded.
func Guarded(command []string, user User) error {
	return guarded(append(slices.Clone(command), filepath.SplitList(SearchPath)...), user)
}

func guarded(words []string, user User) error {
	if user.UID == 0 {
		return nil
	}
	for _, word := range words {
		if _, value, ok := strings.Cut(word, "="); ok && !filepath.IsAbs(word) { // --policy=/etc/policy
			word = value
		}
		if !filepath.IsAbs(word) {
			continue
		}
		paths := []string{word}
		if real, err := filepath.EvalSymlinks(word); err == nil {
			paths = append(paths, real)
		}
		for _, path := range paths {
			for at := filepath.Clean(path); ; at = filepath.Dir(at) {
				if info, err := os.Lstat(at); err == nil && user.mayWrite(info) {
					return fmt.Errorf("%s can be changed by the user that runs templates (uid %d); let it and the directories above belong to root and be writable by nobody else", at, user.UID)
				}
				if at == filepath.Dir(at) {
					break
				}
			}
		}
	}
	return nil
}

// mayWrite goes by owner and mode. An owner may change the mode; in a sticky
// directory others' files are safe.
func (u User) mayWrite(info fs.FileInfo) bool {
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode()&fs.ModeSymlink != 0 {
		return false
	}
	switch mode := info.Mode(); {
	case int(owner.Uid) == u.UID:
		return true
	case mode.IsDir() && mode&fs.ModeSticky != 0:
		return false
	case mode&0o002 != 0:
		return true
	default:
		return mode&0o020 != 0 && slices.Contains(u.Groups, int(owner.Gid))
	}
}
