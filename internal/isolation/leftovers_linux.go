package isolation

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// commonDirs are where anybody may write on an ordinary machine. What is not
// there is passed over.
func commonDirs() []string {
	return []string{"/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock", "/var/lock"}
}

// Forget removes what uids have left where anybody may write, and their System V
// shared memory, semaphores and message queues. None of their processes may live.
func Forget(owned func(uid int) bool) error {
	var errs []error
	for _, dir := range commonDirs() {
		errs = append(errs, forgetFiles(dir, owned))
	}
	return errors.Join(append(errs, forgetIPC(owned))...)
}

// forgetFiles looks through a directory and those below it that anybody may
// write to.
func forgetFiles(dir string, owned func(uid int) bool) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil //nolint:nilerr // there is none
	}
	var errs []error
	err = Walk(dir, func(e Entry) (bool, error) {
		if e.Err != nil {
			return false, nil //nolint:nilerr // of a file system that root cannot read
		}
		if owned(int(e.Stat.Uid)) {
			errs = append(errs, e.Remove())
			return false, nil
		}
		return e.Stat.Mode&0o002 != 0, nil
	})
	return errors.Join(append(errs, err)...)
}

// forgetIPC removes System V objects.
func forgetIPC(owned func(uid int) bool) error {
	var errs []error
	for _, kind := range []struct {
		file, id string
		remove   func(id uintptr) unix.Errno
	}{
		{"shm", "shmid", func(id uintptr) unix.Errno { return control(unix.SYS_SHMCTL, id, unix.IPC_RMID, 0) }},
		{"sem", "semid", func(id uintptr) unix.Errno { return control(unix.SYS_SEMCTL, id, 0, unix.IPC_RMID) }},
		{"msg", "msqid", func(id uintptr) unix.Errno { return control(unix.SYS_MSGCTL, id, unix.IPC_RMID, 0) }},
	} {
		ids, err := objects(path.Join("/proc/sysvipc", kind.file), kind.id, owned)
		errs = append(errs, err)
		for _, id := range ids {
			if errno := kind.remove(id); errno != 0 && errno != unix.EINVAL && errno != unix.EIDRM {
				errs = append(errs, fmt.Errorf("remove what a run left (%s %d): %w", kind.id, id, errno))
			}
		}
	}
	return errors.Join(errs...)
}

func control(call, id, second, third uintptr) unix.Errno {
	_, _, errno := unix.Syscall(call, id, second, third)
	return errno
}

// objects reads a table of /proc/sysvipc. Its first line names the columns.
func objects(table, idColumn string, owned func(uid int) bool) (ids []uintptr, err error) {
	file, err := os.Open(table)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // a kernel without System V IPC
	}
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // only read
	lines := bufio.NewScanner(file)
	id, owner, creator := -1, -1, -1
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if id < 0 {
			id, owner, creator = slices.Index(fields, idColumn), slices.Index(fields, "uid"), slices.Index(fields, "cuid")
			if id < 0 || owner < 0 || creator < 0 {
				return nil, fmt.Errorf("%s has not the columns expected: %q", table, lines.Text())
			}
			continue
		}
		if len(fields) <= max(id, owner, creator) || !of(fields[owner], owned) && !of(fields[creator], owned) {
			continue
		}
		if number, err := strconv.ParseUint(fields[id], 10, 31); err == nil {
			ids = append(ids, uintptr(number))
		}
	}
	return ids, lines.Err()
}

func of(text string, owned func(uid int) bool) bool {
	uid, err := strconv.Atoi(text)
	return err == nil && owned(uid)
}
