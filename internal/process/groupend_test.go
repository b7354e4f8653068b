package process

import (
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// Once a leader was waited for, its id may be another group's, which gets no signal.
func TestGroupThatHasEndedIsNotSignalled(t *testing.T) {
	start := func(script string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		return cmd
	}
	g, err := StartGroup(start("exit 3"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Wait(time.Second); err == nil || err.Error() != "exit status 3" {
		t.Errorf("Wait() = %v, want exit status 3", err)
	}
	other, err := StartGroup(start("exec sleep 1000"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	g.cmd.Process.Pid = other.cmd.Process.Pid
	if g.Signal(syscall.SIGKILL) {
		t.Error("Signal() after Wait = true, want false: another group has the id")
	}
	if !other.Signal(syscall.SIGKILL) {
		t.Error("Signal() of the group that has the id = false, want true: it must be alive")
	}
	if err := other.Wait(time.Second); err == nil {
		t.Error("Wait() of the other group = nil, want that it was killed")
	}
}
