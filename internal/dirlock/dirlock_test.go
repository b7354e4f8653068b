package dirlock_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/dirlock"
)

// One process has the lock, the other learns who, and a released lock is free.
func TestTake(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self := dirlock.Self("one")
	lock, err := dirlock.Take(dir, self)
	if err != nil {
		t.Fatal(err)
	}
	_, err = dirlock.Take(dir, dirlock.Self("two"))
	taken, ok := errors.AsType[*dirlock.InUseError](err)
	if !ok || taken.Holder != self || taken.Dir != dir {
		t.Fatalf("Take(locked) = %v, want an InUseError of %v", err, self)
	}
	if got := taken.Error(); !strings.Contains(got, self.Host) || !strings.Contains(got, `"one"`) {
		t.Errorf("Error() = %q, want host and name in it", got)
	}
	lock.Release()
	if again, err := dirlock.Take(dir, self); err != nil {
		t.Errorf("Take(released) = %v, want the lock", err)
	} else {
		again.Release()
	}
}

// What an earlier version, an unfinished start or somebody else left in the file.
func TestLast(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"4711\n":                 "process 4711",
		"4711                \n": "process 4711",
		"":                       "a process that has not said which",
		"not a process\n":        "a process that has not said which",
		`{"pid": 1, "host": "node-1", "kernel": "b0a1c2d3-e4f5", "name": "prod-1", "since": "2026-11-23T08:00:00Z"}` + "   \n": `process 1 on node-1 ("prod-1", since 2026-11-23 08:00:00 UTC, kernel boot b0a1c2d3)`,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "lock"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, _ := dirlock.Last(dir); got.String() != want {
			t.Errorf("Last(%q) = %q, want %q", content, got, want)
		}
	}
	if _, err := dirlock.Last(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Last(never locked) = %v, want that it does not exist", err)
	}
}

// Only within one PID namespace does a process id mean something.
func TestBeside(t *testing.T) {
	t.Parallel()
	self := dirlock.Self("")
	container, machine := self, self
	container.Namespace, machine.Kernel = "pid:[1]", "another"
	if !self.Beside(self) || self.Beside(container) || self.Beside(machine) || (dirlock.Holder{PID: 1}).Beside(dirlock.Holder{PID: 1}) {
		t.Errorf("Beside: self %v, another container %v, another machine %v, unknown %v; want true and three times false",
			self.Beside(self), self.Beside(container), self.Beside(machine), (dirlock.Holder{PID: 1}).Beside(dirlock.Holder{PID: 1}))
	}
}
