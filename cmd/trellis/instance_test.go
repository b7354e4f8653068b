package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// nothingLives looks for processes whose command line names the directory.
func nothingLives(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		line, err := os.ReadFile(name)
		if err == nil && strings.Contains(string(line), dir) {
			t.Errorf("still alive: %s", strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
}

func TestSecondInterruptEndsRunsNow(t *testing.T) {
	t.Parallel()
	dir := pgtest.Dir(t)
	s := up(t, dir)
	trellis(t, "deploy", "--template", "hello", "--workspace", "a", "--var", "name=x", "--var", "steps=1000", "--data-dir", dir).want(t, "deploy", exitOK)
	follower := begin(t, "logs", "1", "--follow", "--data-dir", dir)
	follower.await(t, "step 1 of 1000")
	children, err := process.Descendants(s.cmd.Process.Pid)
	if err != nil || len(children) == 0 {
		t.Fatalf("Descendants() = %v, %v, want those of up", children, err)
	}
	s.signal(os.Interrupt)
	s.await(t, "Waiting for what runs to finish: #1 a.")
	s.signal(os.Interrupt)
	if code := s.end(t); code != exitOK {
		t.Errorf("up after two interrupts: exit code %d, want 0\n%s", code, s.said)
	}
	for _, p := range children {
		if process.Alive(p.PID) {
			t.Errorf("process %d (%s) has survived", p.PID, p.Name)
		}
	}
	// It has heard of it before the server was gone, or has not; or another test's server
	// has its port by now, and does not know it.
	code, said := follower.end(t), follower.said.String()
	if code != exitUnreachable && (code != exitFailed || !strings.Contains(said, "Run 1 failed")) && !strings.Contains(said, "does not know you") {
		t.Errorf("following what was ended: exit code %d\n%s", code, follower.said)
	}

	up(t, dir)
	if p := status(t, dir, "1"); p.Status != provision.Failed || *p.ErrorCode != string(provision.CodeAgentDrained) {
		t.Errorf("after a restart it is %s, want FAILED agent_drained", p.Status)
	}
}

// slowSleep is an environment in which the second sleep of all takes minutes: what
// sleeps between two steps is still at it when a slow test looks.
func slowSleep(t *testing.T) (env []string) {
	t.Helper()
	dir := filepath.Join(pgtest.Dir(t), "bin")
	script := "#!/bin/sh\nmkdir \"${0%/*}/once\" 2>/dev/null || set -- 600\nexec /bin/sleep \"$@\"\n"
	err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "sleep"), []byte(script), 0o755), os.Chmod(dir, 0o777)) // whoever runs Terraform
	if err != nil {
		t.Fatal(err)
	}
	return []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
}

// A demo ends what it has begun, also when it is interrupted, and joins what runs.
func TestDemo(t *testing.T) {
	t.Parallel()
	dir := pgtest.Dir(t)
	s := beginEnv(t, slowSleep(t), "demo", "--data-dir", dir)
	s.await(t, "step 1 of 8")
	s.signal(os.Interrupt)
	if code := s.end(t); code != exitInterrupted {
		t.Errorf("demo after an interrupt: exit code %d, want %d\n%s", code, exitInterrupted, s.said)
	}
	nothingLives(t, dir)
	trellis(t, "demo", "--data-dir", dir).want(t, "demo", exitOK, "step 8 of 8: growing", "Run 2 succeeded")
	nothingLives(t, dir)

	// Joins what runs, and leaves it running.
	up(t, dir)
	if p := status(t, dir, "1"); p.Status != provision.Cancelled {
		t.Errorf("the provision of the demo that was interrupted is %s, want CANCELLED", p.Status)
	}
	trellis(t, "demo", "--data-dir", dir).want(t, "demo beside up", exitOK, "Using the instance that runs", "Run 3 succeeded")
	trellis(t, "status", "--data-dir", dir).want(t, "status after a demo", exitOK, "demo/hello")
}

// A demo that is given no data directory leaves nothing behind, whether it ends by
// itself or is interrupted: no process, no file.
func TestDemoLeavesNothing(t *testing.T) {
	t.Parallel()
	if err := os.Chmod(filepath.Dir(binary(t)), 0o755); err != nil {
		t.Fatal(err)
	}
	top := pgtest.Dir(t)
	temporary, home := filepath.Join(top, "tmp"), filepath.Join(top, "home")
	if err := errors.Join(os.Mkdir(temporary, 0o700), os.Mkdir(home, 0o700)); err != nil {
		t.Fatal(err)
	}
	own(t, top)
	env := []string{"HOME=" + home, "TMPDIR=" + temporary, "TRELLIS_DATA_DIR="}
	nothingLeft := func(how string) {
		t.Helper()
		nothingLives(t, top)
		for _, dir := range []string{temporary, home} {
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("a demo that %s left %v in %s, %v", how, left, dir, err)
			}
		}
	}
	ordinary(t, top, home, env, "demo").want(t, "demo", exitOK, "step 8 of 8: growing", "Run 1 succeeded")
	nothingLeft("has ended")
	if os.Geteuid() == 0 { // as root PostgreSQL runs as another user
		if err := errors.Join(os.Chmod(temporary, 0o711), os.Chmod(home, 0o711), os.Chown(temporary, 0, 0), os.Chown(home, 0, 0)); err != nil {
			t.Fatal(err)
		}
	}
	s := beginEnv(t, append(env, "XDG_STATE_HOME=", "XDG_DATA_HOME="), "demo")
	s.await(t, "step 1 of 8")
	s.signal(os.Interrupt)
	s.end(t)
	nothingLeft("was interrupted")
}

// A parent that is killed takes everything with it, and the next start goes on.
func TestKilledUp(t *testing.T) {
	t.Parallel()
	dir := pgtest.Dir(t)
	s := up(t, dir)
	children, err := process.Descendants(s.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	s.signal(os.Kill)
	s.end(t)
	for _, p := range children {
		patience.Await(t, "the end of "+p.Name, func() bool { return !process.Alive(p.PID) })
	}
	trellis(t, "status", "--data-dir", dir).want(t, "status after a kill", exitUnreachable, "trellis up is not running")
	trellis(t, "env", "--data-dir", dir).want(t, "env after a kill", exitUnreachable, "trellis up is not running")
	up(t, dir)
	trellis(t, "status", "--data-dir", dir).want(t, "status after a restart", exitOK)
}
