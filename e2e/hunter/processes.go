package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Bounds, so that a hunt ends soon.
const (
	mostFile   = 1 << 20
	mostRegion = 16 << 20
	mostMemory = 256 << 20
)

// processes reads all that /proc gives away of the others.
func (h *hunter) processes() {
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		dir := "/proc/" + entry.Name()
		cmdline, _ := os.ReadFile(dir + "/cmdline")
		name := fmt.Sprintf("of %d (%s)", pid, bytes.ReplaceAll(bytes.TrimSpace(cmdline), []byte{0}, []byte{' '}))
		if len(cmdline) > 0 {
			h.look("cmdline", name, cmdline)
		}
		if environ, err := os.ReadFile(dir + "/environ"); err == nil && len(environ) > 0 {
			h.look("environ", name, environ)
		}
		fds, _ := os.ReadDir(dir + "/fd")
		for _, fd := range fds {
			if content, err := readSome(filepath.Join(dir, "fd", fd.Name())); err == nil {
				h.look("fd", fd.Name()+" "+name, content)
			}
		}
		h.memory(pid, name)
	}
}

// readSome reads the beginning of a regular file and waits for nothing.
func readSome(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // only read
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("no file: %w", err)
	}
	return io.ReadAll(io.LimitReader(file, mostFile))
}

// memory reads what a process may write to: its data.
func (h *hunter) memory(pid int, name string) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return
	}
	defer mem.Close() //nolint:errcheck // only read
	left := mostMemory
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); err != nil || !strings.HasPrefix(mode, "rw") || to-from > mostRegion || left <= 0 {
			continue
		}
		region := make([]byte, to-from)
		n, _ := mem.ReadAt(region, from)
		left -= n
		if n > 0 {
			h.look("mem", name, region[:n])
		}
	}
}

// reach tries to have a say in another process.
func (h *hunter) reach(pid int) {
	if syscall.Kill(pid, 0) == nil {
		h.did("may signal %d", pid)
	}
	runtime.LockOSThread() // ptrace goes by the thread
	if syscall.PtraceAttach(pid) == nil {
		_, _ = syscall.Wait4(pid, nil, 0, nil)
		_ = syscall.PtraceDetach(pid)
		h.did("traces %d", pid)
	}
	runtime.UnlockOSThread()
	if pidfd, err := unix.PidfdOpen(pid, 0); err == nil {
		for fd := range 16 {
			if got, err := unix.PidfdGetfd(pidfd, fd, 0); err == nil {
				h.did("takes descriptor %d of %d", fd, pid)
				_ = unix.Close(got)
			}
		}
		_ = unix.Close(pidfd)
	}
}

// descriptors looks at those it was started with.
func (h *hunter) descriptors() {
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, entry := range entries {
		target, err := os.Readlink("/proc/self/fd/" + entry.Name())
		if err == nil && (strings.Contains(target, "/spool/") || strings.HasSuffix(target, ".lock")) {
			h.did("has inherited %s as descriptor %s", target, entry.Name())
		}
	}
}
