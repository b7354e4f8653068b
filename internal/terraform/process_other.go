//go:build !linux

package terraform

import (
	"errors"
	"io"
)

func newestChild() int { return 0 }

func openStderr(int) (io.ReadCloser, error) { return nil, errors.ErrUnsupported }

// watcher does nothing where processes cannot be watched.
type watcher struct{ stragglers func() }

func (w *watcher) start(int) {}
func (w *watcher) stop()     {}
