package isolation

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// deep makes directories within each other, as no path could name them, and a
// file in the last one.
func deep(t *testing.T, dir string, levels, owner int) {
	t.Helper()
	at, err := openDir(unix.AT_FDCWD, dir)
	for range levels {
		if err == nil {
			err = unix.Mkdirat(int(at.Fd()), "d", 0o500)
		}
		if err == nil && owner != 0 {
			err = unix.Fchownat(int(at.Fd()), "d", owner, owner, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		above := at
		at, err = openDir(int(at.Fd()), "d")
		_ = above.Close() // only read
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = at.Close() // only read
}

// levels is more than a path has characters for, or this test descriptors.
const levels = 2200

// A tree that is too deep to be named, with directories that nobody may write to,
// is removed by whoever owns it.
func TestRemoveAllOfADeepTree(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "top")
	outside := filepath.Join(t.TempDir(), "outside")
	err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(outside, nil, 0o600), os.Symlink(filepath.Dir(outside), filepath.Join(dir, "link")))
	for i := range 3 * batch {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o400))
	}
	if err != nil {
		t.Fatal(err)
	}
	deep(t, dir, levels, 0)
	cmd := exec.Command("/proc/self/exe", dir)
	cmd.Env = []string{roleEnv + "=remove"}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("RemoveAll(): %v: %s", err, out)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after RemoveAll() the tree is there: %v", err)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Errorf("what a link led to is gone: %v", err)
	}
	if err := RemoveAll(dir); err != nil {
		t.Errorf("RemoveAll() of nothing = %v", err)
	}
}

// What is as deep as no engine goes keeps nobody busy for long.
func TestHandOverOfADeepTree(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := t.TempDir()
	deep(t, dir, levels, testIDs.Run)
	b := &Block{Cache: testIDs.Cache}
	if err := errors.Join(os.Chown(dir, 0, testIDs.Run), b.HandOver(dir, testIDs.Run+1, 0o700)); err != nil {
		t.Fatalf("HandOver() = %v", err)
	}
	seen := 0
	err := Walk(dir, func(e Entry) (bool, error) {
		if seen++; int(e.Stat.Uid) != testIDs.Run+1 {
			t.Errorf("level %d belongs to %d, want %d", e.Depth, e.Stat.Uid, testIDs.Run+1)
		}
		return true, e.Err
	})
	if err != nil || seen == 0 || seen > Deepest {
		t.Errorf("%d levels, %v, are left, want some and no more than are looked at", seen, err)
	}
}

// A run may give another uid rights to its directory. They end with it.
func TestHandOverForgetsAccessLists(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := filepath.Join(everybodys(t), "work")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	// user::rwx user:60709:rwx group::--- mask::rwx other::---
	list := []byte{2, 0, 0, 0,
		1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 7, 0, 0x25, 0xed, 0, 0,
		4, 0, 0, 0, 255, 255, 255, 255, 16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255}
	err := errors.Join(unix.Setxattr(dir, "system.posix_acl_access", list, 0), unix.Setxattr(dir, "system.posix_acl_default", list, 0))
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("this file system has no access lists")
	}
	if err != nil {
		t.Fatal(err)
	}
	b := &Block{Cache: testIDs.Cache}
	if err := errors.Join(b.HandOver(dir, 59986, 0o750), os.WriteFile(filepath.Join(dir, "file"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"system.posix_acl_access", "system.posix_acl_default"} {
		if n, err := unix.Getxattr(dir, name, nil); err == nil {
			t.Errorf("after HandOver() %s has %d bytes, want none", name, n)
		}
	}
}
