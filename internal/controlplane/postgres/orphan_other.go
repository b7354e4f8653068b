//go:build unix && !linux

package postgres

import (
	"os/exec"
	"strconv"
	"strings"
)

// servesData reports whether pid lives and was started on the given PGDATA, as
// Start does it.
func servesData(pid int, data string) bool {
	out, err := exec.Command("ps", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.Contains(string(out), " -D "+data)
}

// processesOf finds nothing: without /proc, a backend does not show whose it
// is. Backends end soon after their postmaster all the same.
func processesOf(string) []int { return nil }
