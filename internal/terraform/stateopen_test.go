package terraform

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// What a template can put in a state's place neither hangs nor is followed.
func TestReadStateFileRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.WriteFile(in("state"), []byte("x"), 0o600), syscall.Mkfifo(in("fifo"), 0o600), os.Mkdir(in("directory"), 0o700),
		os.Symlink(in("state"), in("link")), os.Symlink("/dev/zero", in("zero")),
		os.WriteFile(in("large"), nil, 0o600), os.Truncate(in("large"), MaxStateFile+1),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if state, err := ReadStateFile(in("state")); err != nil || string(state) != "x" {
		t.Errorf("ReadStateFile(a file) = %q, %v, want x", state, err)
	}
	for name, want := range map[string]error{
		"fifo": ErrNoStateFile, "directory": ErrNoStateFile, "link": ErrNoStateFile, "zero": ErrNoStateFile,
		"large": ErrStateTooLarge, "none": os.ErrNotExist,
	} {
		if _, err := ReadStateFile(in(name)); !errors.Is(err, want) {
			t.Errorf("ReadStateFile(%s) error = %v, want %v", name, err, want)
		}
	}
}
