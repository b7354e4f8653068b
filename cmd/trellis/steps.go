//go:build linux

package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/devstack"
	"github.com/tendril-run/tendril/internal/provision"
)

// steps tells a person how a start goes: a line for each step when it is done,
// and on a TTY one for the step that goes on.
type steps struct {
	mu     sync.Mutex
	screen *screen
	t      terminal
}

var _ devstack.Reporter = (*steps)(nil)

func newSteps(t terminal) *steps { return &steps{screen: newScreen(t), t: t} }

// Step implements devstack.Reporter.
func (s *steps) Step(name string) func(string) {
	began := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.screen.show("… " + name) // progress is worth no failure
	return func(detail string) {
		took := time.Since(began)
		s.mu.Lock()
		defer s.mu.Unlock()
		mark := ""
		if s.t.tty {
			mark = s.t.paint(green, "✓") + " "
		}
		_ = s.screen.show("")
		_ = s.screen.write(provision.Stdout, fmt.Sprintf("%s%s: %s %s\n", mark, name, detail, s.t.paint(dim, "("+seconds(took)+")")))
	}
}

// Note implements devstack.Reporter.
func (s *steps) Note(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	mark := ""
	if s.t.tty {
		mark = "  "
	}
	_ = s.screen.write(provision.Stdout, mark+text+"\n")
}

// close takes away what is shown of a step that has not ended.
func (s *steps) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.screen.close()
}
