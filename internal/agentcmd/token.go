package agentcmd

import (
	"log/slog"
	"sync"

	"github.com/tendril-run/tendril/internal/config"
)

// tokens is the cluster's token, which may be changed in its file meanwhile.
type tokens struct {
	read func() (config.Secret, error)
	log  *slog.Logger

	mu     sync.Mutex
	newest config.Secret
	told   bool // that it cannot be read
}

// now is the token that the file has, or had when it could be read last: that one
// is valid for as long as the database says so.
func (t *tokens) now() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	read, err := t.read()
	switch {
	case err != nil && !t.told:
		t.log.Warn("the cluster's token cannot be read again; the last one is used", "error", err)
	case err == nil && read != t.newest:
		t.newest = read
		t.log.Info("the cluster's token has changed in its file")
	}
	t.told = err != nil
	return t.newest.Reveal()
}
