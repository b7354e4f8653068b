package postgres

import (
	"fmt"
	"os"
	"path/filepath"
)

// isPostmaster reports whether pid lives and works in the given PGDATA, which
// a postmaster makes its current directory. A zombie has none.
func isPostmaster(pid int, data string) bool {
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	if err != nil {
		return false
	}
	real, err := filepath.EvalSymlinks(data)
	return err == nil && cwd == real
}
