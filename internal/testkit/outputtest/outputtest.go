// Package outputtest keeps what a process or a logger says, for tests that read it while
// more is written.
//
// It must not know what is said.
package outputtest

import (
	"bytes"
	"sync"
)

// Buffer is a buffer for several goroutines. The zero value is empty and ready.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
