package process

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Undumpable keeps other processes of the same uid from reading this one's
// memory, environment and descriptors: no core dump, no ptrace, and /proc/self
// belongs to root (PR_SET_DUMPABLE in prctl(2)). Call it before the first
// secret is read; execve ends it, so each program calls it for itself. What
// needs /proc/self/fd does not work afterwards unless the process is root.
func Undumpable() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("making this process undumpable: %w", err)
	}
	return nil
}

// Subreaper makes this process the parent of descendants whose own parent
// dies, in place of init, so that none gets out of its sight, whatever session
// it moves to (PR_SET_CHILD_SUBREAPER in prctl(2)). It lasts until the process
// ends, execve included, and is not inherited by children.
func Subreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("making this process the reaper of its descendants: %w", err)
	}
	return nil
}

// CloseOnExec marks descriptors that this process was started with, so that
// those it starts do not get them. Every descriptor is tried; the error is the
// first failure, usually EBADF for one that is not open.
func CloseOnExec(fds ...int) error {
	var first error
	for _, fd := range fds {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFD, flags|unix.FD_CLOEXEC)
		}
		if err != nil && first == nil {
			first = fmt.Errorf("setting close-on-exec on descriptor %d: %w", fd, err)
		}
	}
	return first
}

// ReleaseProgram takes the pages of this process's program out of its memory. They are
// the file's, unchanged, so one that is needed again is mapped again at the next access
// (MADV_DONTNEED in madvise(2)). Starting touches most of a program, and what comes after
// little of it. What a loader has changed, or cannot be released, stays as it is.
func ReleaseProgram() {
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return
	}
	var begin, end uint64 // of the mapping whose lines follow; none: 0
	for line := range strings.Lines(string(maps)) {
		// 00400000-014c8000 r-xp 00000000 fe:00 10003553  /usr/bin/tendril (proc_pid_smaps(5))
		// Anonymous:             0 kB
		fields := strings.Fields(line)
		if len(fields) >= 5 && strings.Contains(fields[0], "-") {
			begin, end = 0, 0
			if from, to, _ := strings.Cut(fields[0], "-"); len(fields) == 6 && fields[5][0] == '/' && !strings.ContainsAny(fields[1], "ws") {
				begin, _ = strconv.ParseUint(from, 16, 64)
				end, _ = strconv.ParseUint(to, 16, 64)
			}
		} else if begin < end && len(fields) == 3 && fields[0] == "Anonymous:" && fields[1] == "0" {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(begin), uintptr(end-begin), unix.MADV_DONTNEED)
		}
	}
}

// KillByUID is KillByEnvironment for all that runs with a real uid for which
// match is true, and that is no ancestor of this process. It needs root, or
// that uid.
func KillByUID(ctx context.Context, match func(uid int) bool) (found []Info, err error) {
	return killAll(ctx, func(infos []Info, self int) (picked []Info) {
		spared := ancestors(infos, self)
		for _, info := range infos {
			if uid, ok := realUID(info.PID); ok && !info.Zombie && !spared[info.PID] && match(uid) {
				picked = append(picked, info)
			}
		}
		return picked
	})
}

// realUID asks /proc/PID/status: the owner of /proc/PID is root for a process
// that is undumpable.
func realUID(pid int) (int, bool) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, false // gone
	}
	for line := range strings.Lines(string(status)) {
		if ids, found := strings.CutPrefix(line, "Uid:"); found {
			fields := strings.Fields(ids)
			if len(fields) == 0 {
				return 0, false
			}
			uid, err := strconv.Atoi(fields[0])
			return uid, err == nil
		}
	}
	return 0, false
}
