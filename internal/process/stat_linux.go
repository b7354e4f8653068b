package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"
)

// Info is one process as /proc/PID/stat shows it (proc_pid_stat(5)).
type Info struct {
	PID, Parent, Group, Session int
	// Name is the kernel's: at most 15 bytes of the program's name, or
	// whatever the process has called itself.
	Name string
	// Zombie says that it has ended, all its threads, and waits for its parent
	// to look.
	Zombie bool
	// Started is the time it started, in clock ticks since boot. With the pid
	// it names one process for ever: pids are used again.
	Started uint64
}

// errGone says that a process ended before it could be looked at.
var errGone = errors.New("no such process")

// read returns the process pid, or errGone.
func read(pid int) (Info, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	// ESRCH: it ended between open and read.
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return Info{}, errGone
	}
	if err != nil {
		return Info{}, fmt.Errorf("reading about process %d: %w", pid, err)
	}
	info, err := parse(text)
	if err != nil {
		return Info{}, fmt.Errorf("reading about process %d: %w", pid, err)
	}
	return info, nil
}

// parse reads one line of /proc/PID/stat. The name stands in parentheses and
// may hold spaces, newlines and parentheses itself: it ends at the last one.
func parse(line []byte) (Info, error) {
	open, end := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if open < 1 || end < open {
		return Info{}, fmt.Errorf("unexpected line %q", line)
	}
	rest := bytes.Fields(line[end+1:])
	const started = 19 // field 22 of the line; rest begins with field 3
	if len(rest) <= started || len(rest[0]) != 1 {
		return Info{}, fmt.Errorf("unexpected line %q", line)
	}
	info := Info{Name: string(line[open+1 : end])}
	var threads int
	fields := []struct {
		to   *int
		text []byte
	}{
		{&info.PID, bytes.TrimSpace(line[:open])},
		{&info.Parent, rest[1]}, {&info.Group, rest[2]}, {&info.Session, rest[3]}, {&threads, rest[17]},
	}
	for _, field := range fields {
		n, err := strconv.Atoi(string(field.text))
		if err != nil {
			return Info{}, fmt.Errorf("unexpected line %q", line)
		}
		*field.to = n
	}
	// The state is the first thread's. When that one ends before the others it
	// is Z as well, while the process runs on. X is on its way out of the table.
	info.Zombie = rest[0][0] == 'X' || rest[0][0] == 'Z' && threads <= 1
	var err error
	if info.Started, err = strconv.ParseUint(string(rest[started]), 10, 64); err != nil {
		return Info{}, fmt.Errorf("unexpected line %q", line)
	}
	return info, nil
}

// all returns every process there is. Those that end meanwhile may be missing,
// and so may those that start.
func all() ([]Info, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	infos := make([]Info, 0, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		info, err := read(pid)
		if errors.Is(err, errGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
	}
	return infos, nil
}
