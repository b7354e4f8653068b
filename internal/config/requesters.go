package config

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/tendril-run/tendril/internal/trust"
)

// maxKeyFile is the most bytes of a file with keys of people.
const maxKeyFile = 1 << 20

// Requesters is what policy.requester_keys say now: files are read for each run, so
// that people come and go without a restart.
func (c Config) Requesters() (*trust.Keyring, error) {
	keys, err := trust.ParseKeys(c.Policy.RequesterKeys, readUnwritable)
	if err != nil {
		return nil, fmt.Errorf("policy.requester_keys: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return keys, nil
}

// readUnwritable reads a file that decides what runs may do and holds no secret:
// nobody but root and this process's user may write it.
func readUnwritable(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", err)
	}
	defer file.Close() //nolint:errcheck // only read
	info, err := file.Stat()
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("is no regular file")
	case info.Mode().Perm()&0o022 != 0:
		return "", fmt.Errorf("can be written by others (mode %04o); run: chmod go-w %q", info.Mode().Perm(), path)
	case ok && stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return "", fmt.Errorf("belongs to uid %d; it must belong to root or to the agent's user, uid %d", stat.Uid, os.Geteuid())
	}
	text, err := io.ReadAll(io.LimitReader(file, maxKeyFile+1))
	if err == nil && len(text) > maxKeyFile {
		err = fmt.Errorf("it has more than %d bytes", maxKeyFile)
	}
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", err)
	}
	return string(text), nil
}
