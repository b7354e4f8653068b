package devstack

import (
	"errors"
	"strings"
	"testing"
)

// What fails because the disk has filled up says so, whatever the program that met
// it first has said. /proc has no space at any time.
func TestStartOnAFullDisk(t *testing.T) {
	t.Parallel()
	o, _ := options(t, "/proc/tendril/data")
	if _, err := Start(t.Context(), o); !isFull(err, newSpace) {
		t.Errorf("Start() = %v, want a FullError of %d bytes", err, int64(newSpace))
	}
	if err := becauseFull("/proc/tendril", errors.New("initdb:\n  FATAL: could not write")); !isFull(err, leastSpace) || strings.Contains(err.Error(), "\n") {
		t.Errorf("becauseFull() = %v, want a FullError of one line", err)
	}
	broken := errors.New("something else")
	if err := becauseFull(t.TempDir(), broken); !errors.Is(err, broken) {
		t.Errorf("becauseFull() where there is space = %v, want the error itself", err)
	}
}

func isFull(err error, needed int64) bool {
	full, ok := errors.AsType[*FullError](err)
	return ok && full.Needed == needed
}
