//go:build unix && !linux

package postgres

import (
	"os/exec"
	"strconv"
	"strings"
)

// isPostmaster reports whether pid lives and was started with the given
// PGDATA, as Start does it.
func isPostmaster(pid int, data string) bool {
	out, err := exec.Command("ps", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.Contains(string(out), " -D "+data)
}
