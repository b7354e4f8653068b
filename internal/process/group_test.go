package process_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// startGroup starts a shell that leads a group.
func startGroup(t *testing.T, script string, args ...string) (*process.Group, *strings.Builder) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", append([]string{"-c", script, "sh"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	said := &strings.Builder{}
	g, err := process.StartGroup(cmd, nil, said)
	if err != nil {
		t.Fatal(err)
	}
	return g, said
}

// What the leader has left in its group may print for a while, and is killed then; what
// it printed is there.
func TestGroupOfALeaderThatLeavesAProcessBehind(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	g, said := startGroup(t, `(echo left >&2; : > "$1.said"; exec sleep 1000) & echo $! > "$1"; until [ -e "$1.said" ]; do sleep 0.01; done; echo over >&2`, pid)
	if err := g.Wait(100 * time.Millisecond); err != nil {
		t.Errorf("Wait() = %v, want nil", err)
	}
	if got := said.String(); !strings.Contains(got, "over\n") || !strings.Contains(got, "left\n") {
		t.Errorf("they said %q, want what both said", got)
	}
	text, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	// An orphan is reaped by the test's ancestor.
	patience.Await(t, "the process that was left behind has ended", func() bool {
		_, err := os.Stat("/proc/" + strings.TrimSpace(string(text)) + "/root")
		return err != nil
	})
}
