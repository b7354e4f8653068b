package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// settled waits until a process has become the program it is to be.
func settled(t *testing.T, cmd *exec.Cmd, name string) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for limit := patience.Begin(30 * time.Second); ; <-tick.C {
		if info, err := read(cmd.Process.Pid); err == nil && info.Name == name {
			return
		}
		if limit.Over() {
			t.Fatalf("process %d has not become %s", cmd.Process.Pid, name)
		}
	}
}

// sleeper starts a process that outlives its parent, with an environment entry.
func sleeper(t *testing.T, entry string) *exec.Cmd {
	t.Helper()
	cmd := shell("exec sleep 1000")
	cmd.Env = []string{"A=1", entry, "Z=2"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	settled(t, cmd, "sleep")
	return cmd
}

func TestKillByEnvironment(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := shell("trap '' TERM INT HUP; while :; do setsid sleep 1000 & sleep 0.01; done")
	cmd.Env = append(os.Environ(), "DIR="+filepath.Join(dir, "mine", "a"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	spared := []*exec.Cmd{
		sleeper(t, "DIR="+dir+"/mineral"), sleeper(t, "OTHER="+dir+"/mine/a"), sleeper(t, "XDIR="+dir+"/mine/a"),
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ctx, cancel := patience.Context(t.Context(), 30*time.Second)
	defer cancel()
	found, err := KillByEnvironment(ctx, "DIR="+dir+"/mine/")
	if err != nil || len(found) == 0 {
		t.Errorf("KillByEnvironment() = %+v, %v, want what it found", found, err)
	}
	if err := killedBySignal(<-ended); err != nil {
		t.Error(err)
	}
	infos, err := all()
	if err != nil {
		t.Fatal(err)
	}
	if left := withEnvironment(infos, os.Getpid(), []string{"DIR=" + dir + "/mine/"}); len(left) > 0 {
		t.Errorf("after KillByEnvironment() there live %+v, want none", left)
	}
	for _, other := range spared {
		if !Alive(other.Process.Pid) {
			t.Errorf("a process with %s is dead, want it left alone", other.Env[1])
		}
		_ = other.Process.Kill()
		_ = other.Wait()
	}
}

func TestKillByEnvironmentFindsNothing(t *testing.T) {
	t.Parallel()
	found, err := KillByEnvironment(t.Context(), "NOBODY_HAS_THIS="+t.TempDir())
	if err != nil || len(found) > 0 {
		t.Errorf("KillByEnvironment() = %+v, %v, want none", found, err)
	}
}

func TestKillByEnvironmentNamesWhatIsLeft(t *testing.T) {
	t.Parallel()
	entry := "DIR=" + t.TempDir()
	cmd := sleeper(t, entry)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := KillByEnvironment(ctx, entry)
	if want := fmt.Sprintf("%d (sleep)", cmd.Process.Pid); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), want) {
		t.Errorf("KillByEnvironment(ended context) = %v, want one that names %s", err, want)
	}
	if err := killedBySignal(cmd.Wait()); err != nil { // tried it was all the same
		t.Error(err)
	}
}

func TestAncestorsAreSpared(t *testing.T) {
	t.Parallel()
	infos := []Info{{PID: 1}, {PID: 2, Parent: 1}, {PID: 3, Parent: 2}, {PID: 4, Parent: 3}, {PID: 5, Parent: 2}}
	got := ancestors(infos, 3)
	if len(got) != 3 || !got[1] || !got[2] || !got[3] {
		t.Errorf("ancestors(3) = %v, want 1, 2 and 3", got)
	}
}
