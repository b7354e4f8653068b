package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// memoryLimit is what the agent and its runs may use together.
const memoryLimit = 768 << 20

// memoryGroup makes a control group of the kernel with a limit on memory. Who may do
// that is up to the machine: root, outside of most containers.
func memoryGroup(t *testing.T) (dir string, err error) {
	t.Helper()
	name := "tendril-test-" + uuid.NewString()
	file := "memory.limit_in_bytes"
	dir = filepath.Join(cgroups, "memory", name)
	if _, err := os.Stat(filepath.Join(cgroups, "cgroup.controllers")); err == nil {
		dir, file = filepath.Join(cgroups, name), "memory.max"
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	t.Cleanup(func() {
		patience.Await(t, "the control group to be empty", func() bool { return os.Remove(dir) == nil })
	})
	return dir, os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(memoryLimit)), 0o600)
}

// toldGroups is a directory that reads as the kernel's control groups do, of either
// version, with the limit and nobody killed yet.
func toldGroups(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	limit := strconv.Itoa(memoryLimit) + "\n"
	err := errors.Join(os.Mkdir(filepath.Join(dir, "memory"), 0o700), tellKills(dir, 0),
		os.WriteFile(filepath.Join(dir, "memory.max"), []byte(limit), 0o600),
		os.WriteFile(filepath.Join(dir, "memory", "memory.limit_in_bytes"), []byte(limit), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func tellKills(dir string, kills int) error {
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "memory.events"), fmt.Appendf(nil, "low 0\nhigh 0\nmax 12\noom 1\noom_kill %d\noom_group_kill 0\n", kills), 0o600),
		os.WriteFile(filepath.Join(dir, "memory", "memory.oom_control"), fmt.Appendf(nil, "oom_kill_disable 0\nunder_oom 0\noom_kill %d\n", kills), 0o600))
}

// countKill counts one more process killed in such a directory.
func countKill(dir string) error { return tellKills(dir, 1) }

// A run that is out of memory says so, with the limit. The agent lives. Its end is read
// from files that say what the kernel says, on every machine; where a group can be made,
// the kernel says it, and kills.
func TestRunOutOfMemory(t *testing.T) {
	t.Parallel()
	t.Run("as the kernel tells it", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.setup()
		s.Groups = toldGroups(t)
		a := startAgent(t, s)
		w.runsOutOfMemory(t, a, "oom "+s.Groups, cgroups)
	})
	group, err := memoryGroup(t)
	if err != nil {
		t.Logf("this machine lets no control group be made, so its kernel kills nothing here: %v", err)
		return
	}
	t.Run("by the kernel", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		a := startAgent(t, w.setup())
		if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(a.cmd.Process.Pid)), 0o600); err != nil {
			t.Fatal(err)
		}
		w.runsOutOfMemory(t, a, "eat", group)
	})
}

// runsOutOfMemory has a run of the agent be killed by a step, and wants it to name the
// limit of a group.
func (w *world) runsOutOfMemory(t *testing.T, a *agentUnderTest, step, group string) {
	t.Helper()
	a.says(t, "registered")
	id := w.deploy(t, "prod", "print 2", step)
	w.becomes(t, id, "FAILED/exec_died")
	message := w.Text(t, "SELECT error_message FROM public.provisions WHERE id = $1", id)
	if !strings.Contains(message, "Out of memory") || !strings.Contains(message, "limited to 768 MiB ("+group) {
		t.Errorf("the run's message = %q, want that it was out of memory, and the limit", message)
	}
	w.becomes(t, w.deploy(t, "prod", "print 1", "succeed"), "SUCCESS")
	a.stops(t)
}
