package postgres

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	// maxSocketPath is what sockaddr_un holds on every system we run on, less
	// its NUL: 108 bytes on Linux (unix(7)), 104 on macOS.
	maxSocketPath = 103
	socketName    = ".s.PGSQL." + port
	// shortPrefix marks the directories that stand in for a run/ whose path
	// would be too long.
	shortPrefix = "tendril-pg-"
)

// usable reports whether a socket in dir can be reached: its path has to fit,
// and clients take a comma in it for the end of a first host.
func usable(dir string) bool {
	return len(filepath.Join(dir, socketName)) <= maxSocketPath && !strings.Contains(dir, ",")
}

// makeSocketDir makes the directory of the socket, which only the server's
// account (and root) may enter. It is DataDir/run, or, where that is not
// usable, a directory elsewhere that DataDir/run points to, so that one left
// behind by a killed parent is found and removed.
func (s *Server) makeSocketDir() (string, error) {
	s.removeSocketDir()
	run := filepath.Join(s.dir, "run")
	if usable(run) {
		if err := os.Mkdir(run, 0o700); err != nil {
			return "", fmt.Errorf("making the socket directory: %w", err)
		}
		return run, s.account.own(run)
	}
	var problems []error
	for _, parent := range []string{os.TempDir(), "/tmp", "/run"} {
		if !usable(filepath.Join(parent, shortPrefix+"0123456789")) {
			continue
		}
		if err := s.account.canEnter(filepath.Join(parent, "x")); err != nil {
			problems = append(problems, err)
			continue
		}
		short, err := os.MkdirTemp(parent, shortPrefix)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if err := errors.Join(s.account.own(short), os.Symlink(short, run)); err != nil {
			_ = os.Remove(short)
			return "", fmt.Errorf("making the socket directory: %w", err)
		}
		return short, nil
	}
	return "", fmt.Errorf("the path of the data directory %s is not fit for a socket (%d bytes at most with /run/%s, no comma) and there is no other place: %w", s.dir, maxSocketPath, socketName, errors.Join(problems...))
}

// removeSocketDir removes DataDir/run and what it may point to. It deletes the
// server's own files only, and by name: the account owns the directory and
// could have put anything there.
func (s *Server) removeSocketDir() {
	run := filepath.Join(s.dir, "run")
	info, err := os.Lstat(run)
	if err != nil {
		return
	}
	target := run
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = os.Readlink(run); err != nil {
			return
		}
		if !strings.HasPrefix(filepath.Base(target), shortPrefix) {
			return
		}
	}
	if dir, err := os.OpenRoot(target); err == nil {
		_ = dir.Remove(socketName)
		_ = dir.Remove(socketName + ".lock")
		_ = dir.Close()
		_ = os.Remove(target)
	}
	_ = os.Remove(run)
}
