package isolation

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Root that acts as another uid can do with files what that uid can, and no
// other goroutine notices.
func TestWithFilesOf(t *testing.T) {
	t.Parallel()
	needRoot(t)
	const uid = 59_981
	dir := everybodys(t)
	secret, own := filepath.Join(dir, "secret"), filepath.Join(dir, "private")
	err := errors.Join(
		os.WriteFile(secret, []byte("secret"), 0o600), os.Mkdir(own, 0o700),
		os.WriteFile(filepath.Join(own, "kept"), nil, 0o600), os.Symlink(own, filepath.Join(dir, "link")))
	if err != nil {
		t.Fatal(err)
	}
	err = WithFilesOf(uid, func() error {
		var wrong []error
		if _, err := os.OpenFile(secret, os.O_RDWR, 0); !errors.Is(err, fs.ErrPermission) {
			wrong = append(wrong, fmt.Errorf("open what is root's: %w, want it refused", err))
		}
		if err := RemoveAll(filepath.Join(dir, "link", "kept")); !errors.Is(err, fs.ErrPermission) {
			wrong = append(wrong, fmt.Errorf("remove what a link leads to: %w, want it refused", err))
		}
		if err := os.Chown(dir, uid, uid); !errors.Is(err, fs.ErrPermission) {
			wrong = append(wrong, fmt.Errorf("chown: %w, want it refused", err))
		}
		other := make(chan error)
		go func() {
			_, err := os.ReadFile(secret)
			other <- err
		}()
		if err := <-other; err != nil {
			wrong = append(wrong, fmt.Errorf("another goroutine: %w", err))
		}
		return errors.Join(append(wrong, os.WriteFile(filepath.Join(dir, "made"), nil, 0o600))...)
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := os.ReadFile(secret); err != nil {
		t.Errorf("after it: %v", err)
	}
	var stat unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, "made"), &stat); err != nil || stat.Uid != uid || stat.Gid != uid {
		t.Errorf("what it made belongs to %d:%d, %v, want %d", stat.Uid, stat.Gid, err, uid)
	}
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if dumpable != 0 || err != nil {
		t.Errorf("the process's dumpable flag is %d, %v, want 0", dumpable, err)
	}
	want := errors.New("as told")
	if err := WithFilesOf(uid, func() error { return want }); !errors.Is(err, want) {
		t.Errorf("WithFilesOf() = %v, want %v", err, want)
	}
}

// Who is not root cannot, and then nothing is done.
func TestWithFilesOfSomebodyElse(t *testing.T) {
	t.Parallel()
	play(t, "nobody acts as another", everybodys(t))
}

// What a process is to be told when its parent dies is known of its main thread,
// and forgotten when that changes its rights.
func TestWithFilesOfLeavesMainThread(t *testing.T) {
	t.Parallel()
	play(t, onMainThread, everybodys(t))
}

func TestWithFilesOfLeavesGroups(t *testing.T) {
	t.Parallel()
	play(t, "acts without its groups", everybodys(t))
}
