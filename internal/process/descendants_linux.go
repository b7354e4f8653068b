package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Alive reports whether pid is a process that has not ended; a zombie has.
func Alive(pid int) bool {
	info, err := read(pid)
	if errors.Is(err, errGone) {
		return false
	}
	// One that cannot be read is there: better to wait for it in vain than to
	// take it for dead.
	return err != nil || !info.Zombie
}

// Descendants returns the children of pid, their children and so on, zombies
// included, parents before their children. Only what hangs together below pid
// is found: where pid is no subreaper, orphans have gone to init.
func Descendants(pid int) ([]Info, error) {
	infos, err := all()
	if err != nil {
		return nil, err
	}
	return below(pid, infos), nil
}

// below picks the descendants of pid. The list was not read in one instant: a
// pid used again may close a ring in it, hence seen.
func below(pid int, infos []Info) []Info {
	children := map[int][]Info{}
	for _, info := range infos {
		children[info.Parent] = append(children[info.Parent], info)
	}
	var found []Info
	seen := map[int]bool{pid: true}
	for next := []int{pid}; len(next) > 0; next = next[1:] {
		for _, child := range children[next[0]] {
			if !seen[child.PID] {
				seen[child.PID] = true
				found = append(found, child)
				next = append(next, child.PID)
			}
		}
	}
	return found
}

// childrenOf returns the children of pid, zombies included, as the kernel lists
// them by the thread that has them. A child whose thread ends while the list is
// read may be missing; so may, beside another that ends just then, any but the
// first. That there is none is certain. An error where the kernel has no such
// list (CONFIG_PROC_CHILDREN).
func childrenOf(pid int) ([]int, error) {
	tasks := "/proc/" + strconv.Itoa(pid) + "/task"
	threads, err := os.ReadDir(tasks)
	if err != nil {
		return nil, fmt.Errorf("listing the threads of process %d: %w", pid, err)
	}
	var children []int
	for _, thread := range threads {
		list, err := os.ReadFile(tasks + "/" + thread.Name() + "/children")
		if err != nil {
			return nil, fmt.Errorf("listing the children of process %d: %w", pid, err)
		}
		for _, field := range strings.Fields(string(list)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				return nil, fmt.Errorf("listing the children of process %d: unexpected list %q", pid, list)
			}
			children = append(children, child)
		}
	}
	return children, nil
}

// Descends reports whether pid was started by process above, or by one that it
// has started, and so on. Zombies have parents, too.
func Descends(pid, above int) (bool, error) {
	const deepest = 1 << 10 // a pid that was used again might close a ring
	for range deepest {
		info, err := read(pid)
		if errors.Is(err, errGone) {
			return false, nil
		}
		if err != nil || info.Parent == above || info.Parent == 0 {
			return err == nil && info.Parent == above, err
		}
		pid = info.Parent
	}
	return false, nil
}
