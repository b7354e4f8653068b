// Package dirlock locks a directory for one process and says which one has it.
//
// The lock is flock(2) on the file "lock" in the directory: the kernel gives it back
// when the process dies, whatever it dies of. The file says who took it last, as one
// line of JSON, padded and written in place so that a reader never sees an empty file:
//
//	{"pid":4711,"host":"node-1","kernel":"b0a…","pid_namespace":"pid:[4026531836]","name":"prod-1","since":"2026-11-23T08:00:00Z"}
//
// A process id means something within its PID namespace alone. Beside compares that, so
// that a caller can tell a second process of the same machine or container from one in
// another container that shares the volume.
//
// The package must not know what is in the directory, nor what a caller does about a
// lock that somebody else has.
package dirlock

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// fileName is the file that is locked.
const fileName = "lock"

// width pads the line, in bytes.
const width = 512

// kernelFile names the kernel's current run: the same in all containers of a machine,
// another one after each boot (proc_sys_kernel(5)).
const kernelFile = "/proc/sys/kernel/random/boot_id"

// Holder is a process that has, or wants, the lock of a directory.
type Holder struct {
	PID       int       `json:"pid"`
	Host      string    `json:"host,omitempty"`
	Kernel    string    `json:"kernel,omitempty"` // the run of the machine's kernel
	Namespace string    `json:"pid_namespace,omitempty"`
	Name      string    `json:"name,omitempty"` // what the process calls itself
	Since     time.Time `json:"since,omitzero"`
}

// Self is this process. What the machine does not tell stays empty.
func Self(name string) Holder {
	h := Holder{PID: os.Getpid(), Name: name, Kernel: Kernel(), Since: time.Now().UTC().Truncate(time.Second)}
	h.Host, _ = os.Hostname()
	h.Namespace, _ = os.Readlink("/proc/self/ns/pid")
	return h
}

// Kernel names the run of this machine's kernel, "" where it cannot be read.
func Kernel() string {
	text, err := os.ReadFile(kernelFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// Beside reports whether both are in one PID namespace of one machine, so that a process
// id of the one means something to the other.
func (h Holder) Beside(other Holder) bool {
	return h.Kernel != "" && h.Namespace != "" && h.Kernel == other.Kernel && h.Namespace == other.Namespace
}

// String is a clause such as: process 4711 on node-1 ("prod-1", since 2026-11-23 08:00:00 UTC).
func (h Holder) String() string {
	if h.PID == 0 {
		return "a process that has not said which"
	}
	text := fmt.Sprintf("process %d", h.PID)
	if h.Host != "" {
		text += " on " + h.Host
	}
	var more []string
	if h.Name != "" {
		more = append(more, strconv.Quote(h.Name))
	}
	if !h.Since.IsZero() {
		more = append(more, "since "+h.Since.UTC().Format("2006-01-02 15:04:05 UTC"))
	}
	if len(h.Kernel) >= 8 {
		more = append(more, "kernel boot "+h.Kernel[:8])
	}
	if len(more) > 0 {
		text += " (" + strings.Join(more, ", ") + ")"
	}
	return text
}

// InUseError says that another process has the lock.
type InUseError struct {
	Dir    string
	Holder Holder // its PID is 0 when not known
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("the directory %s is in use by %s", e.Dir, e.Holder)
}

// Lock is a lock that this process has.
type Lock struct{ file *os.File }

// Take locks a directory for self. It fails with an *InUseError while another process
// has the lock.
func Take(dir string, self Holder) (_ *Lock, err error) {
	file, err := os.OpenFile(filepath.Join(dir, fileName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the directory: %w", err)
	}
	defer func() {
		if err != nil {
			_ = file.Close()
		}
	}()
	switch free, err := TryFile(file); {
	case err != nil:
		return nil, fmt.Errorf("lock the directory %s: %w", dir, err)
	case !free:
		holder, _ := read(file) // without it the message is a little poorer
		return nil, &InUseError{Dir: dir, Holder: holder}
	}
	line, err := json.Marshal(self)
	if err != nil {
		return nil, fmt.Errorf("lock the directory: %w", err)
	}
	if _, err := file.WriteAt(fmt.Appendf(nil, "%-*s\n", width, line), 0); err != nil {
		return nil, fmt.Errorf("lock the directory: %w", err)
	}
	return &Lock{file: file}, nil
}

// File is the locked file, for its number.
func (l *Lock) File() *os.File { return l.file }

// Release gives the lock up. Closing the file alone would leave it to a process that is
// just being started, which has a copy of the descriptor until it becomes its program.
func (l *Lock) Release() {
	_ = unix.Flock(int(l.file.Fd()), unix.LOCK_UN) // it was ours, or released before
	_ = l.file.Close()                             // nothing was written
}

// InUse reports whether a process has the lock of a directory, and which, as far as this
// user may look.
func InUse(dir string) (Holder, bool) {
	file, err := os.OpenFile(filepath.Join(dir, fileName), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return Holder{}, false
	}
	defer file.Close() //nolint:errcheck // opened for reading
	if !errors.Is(unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK) {
		return Holder{}, false
	}
	holder, _ := read(file) // without it the message is a little poorer
	return holder, true
}

// Last is who took the lock of a directory last, whether they still have it or not. An
// error says that the directory was never locked, or that the file cannot be read.
func Last(dir string) (Holder, error) {
	file, err := os.OpenFile(filepath.Join(dir, fileName), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return Holder{}, err
	}
	defer file.Close() //nolint:errcheck // opened for reading
	return read(file)
}

// read reads a lock's file, also one of an earlier version: a bare process id.
func read(file *os.File) (h Holder, err error) {
	text, err := io.ReadAll(io.NewSectionReader(file, 0, 8*width))
	if err != nil {
		return Holder{}, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	line = strings.TrimSpace(line)
	if pid, err := strconv.Atoi(line); err == nil {
		return Holder{PID: pid}, nil
	}
	if err := json.Unmarshal([]byte(line), &h); err != nil {
		return Holder{}, fmt.Errorf("read who locked the directory: %w", err)
	}
	return h, nil
}

// TryFile takes the flock of an open file and reports whether it was free.
func TryFile(file *os.File) (bool, error) {
	for {
		switch err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		default:
			return false, os.NewSyscallError("flock", err)
		}
	}
}
