package agent

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// memoryGroup makes a control group with a limit on memory.
func memoryGroup(t *testing.T, limit int64) (dir string) {
	t.Helper()
	name := "tendril-test-" + uuid.NewString()
	file := "memory.limit_in_bytes"
	dir = filepath.Join("/sys/fs/cgroup/memory", name)
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		dir, file = filepath.Join("/sys/fs/cgroup", name), "memory.max"
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Skipf("this machine lets no control group be made, so nothing can be limited here: %v", err)
	}
	t.Cleanup(func() {
		eventually(t, "the control group to be empty", func() bool { return os.Remove(dir) == nil })
	})
	if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(limit, 10)), 0o600); err != nil {
		t.Skipf("this machine limits no memory of control groups: %v", err)
	}
	return dir
}

// A run that is out of memory says so, with the limit. The agent lives.
func TestRunOutOfMemory(t *testing.T) {
	t.Parallel()
	group := memoryGroup(t, 768<<20)
	w := newWorld(t)
	a := startAgent(t, w.setup())
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(a.cmd.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	a.says(t, "registered")
	id := w.deploy(t, "prod", "print 2", "eat")
	w.becomes(t, id, "FAILED/exec_died")
	message := w.Text(t, "SELECT error_message FROM public.provisions WHERE id = $1", id)
	if !strings.Contains(message, "Out of memory") || !strings.Contains(message, "limited to 768 MiB ("+group) {
		t.Errorf("the run's message = %q, want that it was out of memory, and the limit", message)
	}
	w.becomes(t, w.deploy(t, "prod", "print 1", "succeed"), "SUCCESS")
	a.stops(t)
}
