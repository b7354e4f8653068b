// Package cgroup reads what the kernel says of the memory of the control group that this
// process runs in: its limit, and how many of its processes were killed for want of memory.
// Both versions of control groups are known.
//
// Sources: https://docs.kernel.org/admin-guide/cgroup-v2.html (memory.max, memory.events)
// and https://docs.kernel.org/admin-guide/cgroup-v1/memory.html (memory.limit_in_bytes,
// memory.oom_control).
//
// The package must not know what runs in the group, and changes nothing there.
package cgroup

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory is the memory controller of one group. The zero value knows nothing.
type Memory struct {
	dir     string
	unified bool // version 2
}

// Own is the group of this process.
func Own() Memory { return Find("/proc/self/cgroup", "/sys/fs/cgroup") }

// Find is the group of the process whose groups a file lists, as /proc/PID/cgroup does, where
// they are mounted at root. Inside of a container the listed path is often that of the host,
// and its own group is the mount's root.
func Find(groups, root string) Memory {
	file, err := os.Open(groups)
	if err != nil {
		return Memory{}
	}
	defer file.Close() //nolint:errcheck // opened for reading
	var unified *Memory
	for lines := bufio.NewScanner(file); lines.Scan(); {
		// 4:memory:/kubepods/pod1/c1, or 0::/kubepods/pod1/c1
		_, rest, _ := strings.Cut(lines.Text(), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		for _, controller := range strings.Split(controllers, ",") {
			if controller == "memory" {
				return Memory{dir: first(filepath.Join(root, "memory"), path, "memory.oom_control")}
			}
		}
		if controllers == "" {
			unified = &Memory{dir: first(root, path, "memory.events"), unified: true}
		}
	}
	if unified != nil {
		return *unified
	}
	return Memory{}
}

// first is the group's directory if it has the file, else the mount's root.
func first(mount, path, file string) string {
	if _, err := os.Stat(filepath.Join(mount, path, file)); err == nil {
		return filepath.Join(mount, path)
	}
	return mount
}

// Kills is how many processes of the group the kernel has killed for want of memory, since
// the group was made. 0 as well where that cannot be read.
func (m Memory) Kills() int64 {
	file := map[bool]string{true: "memory.events", false: "memory.oom_control"}[m.unified]
	text, err := os.ReadFile(filepath.Join(m.dir, file))
	if m.dir == "" || err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if count, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			kills, _ := strconv.ParseInt(count, 10, 64)
			return kills
		}
	}
	return 0
}

// Limit is the group's limit in bytes, and the file that says so; 0 for none.
func (m Memory) Limit() (bytes int64, file string) {
	file = filepath.Join(m.dir, map[bool]string{true: "memory.max", false: "memory.limit_in_bytes"}[m.unified])
	text, err := os.ReadFile(file)
	if m.dir == "" || err != nil {
		return 0, ""
	}
	bytes, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || bytes >= unlimited { // "max", or version 1's way to say so
		return 0, ""
	}
	return bytes, file
}

// unlimited is what version 1 says, rounded to a page, where there is no limit.
const unlimited = 1 << 62

// Since says in two sentences that the kernel has killed a process of the group since Kills
// was that number, with the limit and what to do; "" if it has not.
func (m Memory) Since(kills int64) string {
	if m.Kills() <= kills {
		return ""
	}
	const killed = "Out of memory: the kernel killed a process of this run, or of another one at the same time."
	if limit, file := m.Limit(); limit > 0 {
		return fmt.Sprintf("%s All that the agent and its runs use together is limited to %d MiB (%s): raise the limit, or run fewer slots.", killed, limit>>20, file)
	}
	return killed + " Nothing limits the agent, so the machine itself was out of memory: give it more, or run fewer slots."
}
