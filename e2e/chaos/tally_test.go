package chaos

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
)

// counted adds up what all tests of the process did; see told.
var counted tally

// tally counts, by name.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *tally) add(what string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[what] += n
}

func (c *tally) print(w io.Writer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, what := range slices.Sorted(maps.Keys(c.counts)) {
		_, _ = fmt.Fprintf(w, "chaos: %7d %s\n", c.counts[what], what)
	}
}
