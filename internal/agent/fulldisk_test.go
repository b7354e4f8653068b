package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fillSpool takes all that is left of the disk of an agent's spools, until the returned
// function gives it back.
func (a *agentUnderTest) fillSpool(t *testing.T, dataDir string) (empty func()) {
	t.Helper()
	path := filepath.Join("/proc", strconv.Itoa(a.cmd.Process.Pid), "root", dataDir, "spool", "filler")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // what it holds is of no use
	for page := make([]byte, 4096); err == nil; {
		_, err = file.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk of the spools: %v, want it full", err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}

// A run for whose spool the disk has no room ends with a reason of its own, which says
// what was tried, where, and what to do. The next one is none the worse for it.
func TestNoRoomToStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.setup()
	s.SpoolBytes = 8 << 20
	a := startAgent(t, s)
	a.says(t, "registered")
	empty := a.fillSpool(t, w.data)
	id := w.deploy(t, "prod", "print 1", "succeed")
	w.becomes(t, id, "FAILED/spool_failed")
	message := w.Text(t, "SELECT error_message FROM public.provisions WHERE id = $1", id)
	for _, want := range []string{"could not start the run: its disk is full", "make the spool: ", "no space left on device", "Nothing was changed", "Make room on the disk of " + w.data} {
		if !strings.Contains(message, want) {
			t.Errorf("the run's message = %q, want %q in it", message, want)
		}
	}
	empty()
	w.becomes(t, w.deploy(t, "prod", "print 1", "succeed"), "SUCCESS")
	a.stops(t)
}
