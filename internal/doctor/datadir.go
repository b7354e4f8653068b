package doctor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/dirlock"
)

func (d *doctor) dataDir(context.Context) verdict {
	dir := d.Config.DataDir
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if parent := shut(existing(dir)); parent != "" && d.isolates() {
			return fail(fmt.Sprintf("run: chmod o+x %s, or choose another data_dir", strconv.Quote(parent)),
				"%s is not there yet, and %s lets no other user through to it, which runs with uids of their own need", dir, parent)
		}
		return creatable(dir)
	case err != nil:
		return fail("let the agent's user reach it, or set data_dir to another place", "cannot be looked at: %v", err)
	case !info.IsDir():
		return fail("set data_dir to a directory", "%s is not a directory", dir)
	}
	owner, ours := -1, false
	if stat, is := info.Sys().(*syscall.Stat_t); is {
		owner, ours = int(stat.Uid), byGroup(info.Mode(), int(stat.Gid))
	}
	if owner != d.uid && d.uid != 0 && !ours {
		return fail(fmt.Sprintf("run this as the user that the agent runs as, or: chown %d %s", d.uid, strconv.Quote(dir)),
			"%s belongs to uid %d, and this runs as uid %d", dir, owner, d.uid)
	}
	if parent := shut(filepath.Dir(dir)); parent != "" && d.isolates() {
		return fail(fmt.Sprintf("run: chmod o+x %s, or choose another data_dir", strconv.Quote(parent)),
			"%s lets no other user through to the data directory, and runs have uids of their own", parent)
	}
	if err := syncs(dir); err != nil {
		return fail("make the file system writable, or set data_dir to another place", "%s does not take a file: %v", dir, err)
	}
	in := ""
	if holder := lockHolder(dir); holder.PID != 0 {
		d.agentRuns = true
		in = fmt.Sprintf(", in use by a running agent: %s", holder)
	}
	switch mode := info.Mode().Perm(); {
	case owner != d.uid && ours:
		return ok("%s, by its group%s", dir, in)
	case mode&0o066 != 0:
		return warn("run: chmod go-rw "+strconv.Quote(dir), "%s can be read or written by others (mode %04o)%s", dir, mode, in)
	case owner != d.uid:
		return warn("if the agent runs as that user, run this as it too", "%s belongs to uid %d, and this runs as root%s", dir, owner, in)
	}
	return ok("%s%s", dir, in)
}

// byGroup tells a volume as Kubernetes mounts it by fsGroup, which stays root's:
// all rights come from a group of this process, and others have none.
func byGroup(mode fs.FileMode, gid int) bool {
	groups, err := os.Getgroups()
	return err == nil && mode&0o077 == 0o070 && (gid == os.Getegid() || slices.Contains(groups, gid))
}

// shut returns the topmost directory on the way that other users may not pass;
// "" for none.
func shut(dir string) string {
	if parent := filepath.Dir(dir); parent != dir {
		if found := shut(parent); found != "" {
			return found
		}
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm()&0o001 != 0 {
		return ""
	}
	return dir
}

// isolates reports whether runs get uids of their own.
func (d *doctor) isolates() bool { return d.uid == 0 && d.Config.Run.UIDs != "off" }

// creatable says whether a directory that is not there can be made.
func creatable(dir string) verdict {
	parent := dir
	for {
		parent = filepath.Dir(parent)
		info, err := os.Stat(parent)
		if errors.Is(err, fs.ErrNotExist) && parent != filepath.Dir(parent) {
			continue
		}
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("%s is not a directory", parent)
		}
		if err == nil {
			err = unix.Access(parent, unix.W_OK|unix.X_OK)
		}
		if err != nil {
			return fail("make it for the agent's user, or set data_dir to another place",
				"%s is not there and cannot be made in %s: %v", dir, parent, err)
		}
		return ok("%s is not there yet; the agent will make it", dir)
	}
}

// syncs writes a file to the disk and takes it away again. Its name is one that
// an agent's start sweeps.
func syncs(dir string) error {
	file, err := os.CreateTemp(dir, ".tmp-doctor-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file.Name()) }()
	_, err = file.WriteString("tendril doctor\n")
	return errors.Join(err, file.Sync(), file.Close())
}

// lockHolder returns the process that holds the lock file; 0 for none, or where
// the system does not tell. To try the lock would for a moment take it, and an
// agent that starts in that moment would not.
func lockHolder(dir string) dirlock.Holder {
	holder, err := dirlock.Last(dir)
	if err != nil {
		return dirlock.Holder{}
	}
	info, err := os.Stat(filepath.Join(dir, "lock"))
	if err != nil {
		return dirlock.Holder{}
	}
	stat, is := info.Sys().(*syscall.Stat_t)
	if !is {
		return dirlock.Holder{}
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return dirlock.Holder{}
	}
	defer locks.Close() //nolint:errcheck // opened for reading
	// 1: FLOCK  ADVISORY  WRITE 4711 fd:01:131 0 EOF
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 5 && fields[1] == "FLOCK" && fields[4] == strconv.Itoa(holder.PID) &&
			strings.HasSuffix(fields[5], ":"+strconv.FormatUint(stat.Ino, 10)) {
			return holder
		}
	}
	return dirlock.Holder{}
}
