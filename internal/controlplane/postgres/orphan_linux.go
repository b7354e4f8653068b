package postgres

import (
	"os"
	"path/filepath"
	"strconv"
)

// servesData reports whether pid lives and is a postmaster or backend of the
// given PGDATA: they make it their current directory. A zombie has none.
func servesData(pid int, data string) bool {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	exe, err := os.Readlink(filepath.Join(proc, "exe"))
	// " (deleted)" follows when an upgrade has replaced the program.
	if base := filepath.Base(exe); err != nil || base != "postgres" && base != "postgres (deleted)" {
		return false
	}
	cwd, err := os.Readlink(filepath.Join(proc, "cwd"))
	if err != nil {
		return false
	}
	real, err := filepath.EvalSymlinks(data)
	return err == nil && cwd == real
}

// processesOf lists all that serve the given PGDATA.
func processesOf(data string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && servesData(pid, data) {
			pids = append(pids, pid)
		}
	}
	return pids
}
