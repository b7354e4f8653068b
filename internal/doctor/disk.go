package doctor

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	// Less room than diskFail does not take one run: a checkout, a provider, and
	// its log. Less than diskWarn does not take some side by side.
	diskFail = 256 << 20
	diskWarn = 2 << 30
	// A checkout with its modules and providers has thousands of files.
	inodesFail = 1_000
	inodesWarn = 20_000
)

func (d *doctor) disk(context.Context) verdict {
	dir := existing(d.Config.DataDir)
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return fail("set data_dir to another place", "the file system of %s does not say how full it is: %v", dir, err)
	}
	free := s.Bavail * uint64(s.Bsize)
	// Some file systems (btrfs) make inodes as they need them and count none.
	limited := s.Files > 0
	const action = "make room, or set data_dir to a larger file system"
	switch {
	case free < diskFail:
		return fail(action, "%s has %s free; one run may need %s", dir, size(free), size(diskFail))
	case limited && s.Ffree < inodesFail:
		return fail(action, "%s has %d inodes free; one run may need %d", dir, s.Ffree, inodesFail)
	case free < diskWarn:
		return warn(action, "%s has %s free; %s or more lets several runs and their providers fit", dir, size(free), size(diskWarn))
	case limited && s.Ffree < inodesWarn:
		return warn(action, "%s has %d inodes free; %d or more lets several runs fit", dir, s.Ffree, inodesWarn)
	}
	return ok("%s free in %s", size(free), dir)
}

// existing is the directory, or the nearest above it that is there.
func existing(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// size writes a number of bytes for people.
func size(n uint64) string {
	const unit = 1024
	value, suffix := float64(n), "bytes"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if math.Round(value) < unit { // else it would be written as 1024 of the smaller one
			break
		}
		value, suffix = value/unit, next
	}
	if suffix == "bytes" || value >= 10 {
		return fmt.Sprintf("%.0f %s", value, suffix)
	}
	return fmt.Sprintf("%.1f %s", value, suffix)
}
