package site

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/gofrs/flock"
)

// build builds the programs into a directory. To link them takes longer than
// anything else that several packages' tests begin with, so they are built where
// the next one finds them: go itself sees whether they are still the same.
func build(dir string, flags []string) error {
	kept := filepath.Join(root(), ".cache", fmt.Sprintf("programs-%x", sha256.Sum256([]byte(strings.Join(flags, " ")+os.Getenv("CGO_ENABLED")))))
	if os.MkdirAll(kept, 0o755) != nil {
		return goBuild(dir, flags) // a checkout that this user may not write to
	}
	lock := flock.New(filepath.Join(kept, ".lock"))
	if err := lock.Lock(); err != nil {
		return err
	}
	defer lock.Unlock() //nolint:errcheck // closing the file, which ends the lock, has no other way to fail
	if err := goBuild(kept, flags); err != nil {
		return err
	}
	for _, name := range []string{"tendril", "trellis"} {
		if err := copyProgram(filepath.Join(kept, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func goBuild(dir string, flags []string) error {
	cmd := exec.Command("go", append(append([]string{"build", "-o", dir + "/"}, flags...), "./cmd/tendril", "./cmd/trellis")...)
	cmd.Dir = root()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

func copyProgram(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close() //nolint:errcheck // only read
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = target.ReadFrom(source)
	return errors.Join(err, target.Close())
}
