package libvirt

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

// recorder keeps what a driver tells, and calls at with each step.
type recorder struct {
	t  *testing.T
	at func(id string, percent int)

	mu      sync.Mutex
	steps   []string
	lines   []string
	secrets []string
}

func (r *recorder) Step(id, label string, percent int) {
	r.mu.Lock()
	step := fmt.Sprintf("%s %d", id, percent)
	r.steps = append(r.steps, step)
	r.mu.Unlock()
	if label == "" || percent < 0 || percent > 100 {
		r.t.Errorf("Step(%q, %q, %d): no label, or no percentage", id, label, percent)
	}
	if r.at != nil {
		r.at(id, percent)
	}
}

func (r *recorder) Log(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
}

func (r *recorder) Secret(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.secrets = append(r.secrets, text)
}

// log answers all lines.
func (r *recorder) log() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.lines, "\n")
}
