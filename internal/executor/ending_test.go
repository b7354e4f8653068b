package executor_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// roleEnv makes the test binary one of the processes that a fake engine leaves
// behind. Under an engine's name it is the engine.
const roleEnv = "TENDRIL_TEST_ROLE"

// playRole returns whether this process has a part to play, after it has.
func playRole() bool {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	switch role := os.Getenv(roleEnv); {
	case role == "stays":
		note(self, "stays")
		time.Sleep(sleepsLong)
	case role == "leaves an orphan":
		leave(self, fmt.Sprint("orphan of ", os.Getpid()), nil)
	case strings.HasPrefix(role, "orphan of "):
		for role == fmt.Sprint("orphan of ", os.Getppid()) {
			time.Sleep(time.Millisecond) // until its parent has ended
		}
		path := filepath.Join(filepath.Dir(self), "orphan")
		if err := os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
			panic(err)
		}
	case role == "forks": // a daemon's first half
		leave(self, "stays", nil)
	case filepath.Base(self) == "terraform":
		playEngine(self)
	default:
		return false
	}
	return true
}

// playEngine is an engine that plans a change and cannot be interrupted.
func playEngine(self string) {
	switch os.Args[1] {
	case "version":
		fmt.Println(`{"terraform_version":"1.11.4","provider_selections":{}}`)
	case "plan":
		os.Exit(2) // there are changes
	case "show":
		fmt.Println(`{"format_version":"1.2","terraform_version":"1.11.4"}`)
	case "apply":
		signal.Ignore(os.Interrupt, syscall.SIGTERM)
		note(self, "engine")
		leave(self, "stays", os.Stdout)
		leave(self, "forks", nil)
		orphan(self)
		fmt.Println(`{"@level":"info","@message":"applying for ever","@timestamp":"2026-01-02T03:04:05Z","type":"log"}`)
		time.Sleep(sleepsLong)
	}
}

// sleepsLong is longer than any test, yet not for ever, should one fail to end it.
const sleepsLong = 10 * time.Minute

// leave starts a process in a session of its own. One with an output holds it
// and is not waited for; one without is.
func leave(self, role string, out *os.File) {
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	child := exec.Command(self)
	child.Env = append(os.Environ(), roleEnv+"="+role)
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if out != nil {
		child.Stdout, child.Stderr = out, out
	}
	if err := child.Start(); err != nil {
		panic(err)
	}
}

// orphan starts a process whose own child outlives it, for an instant.
func orphan(self string) {
	child := exec.Command(self)
	child.Env = append(os.Environ(), roleEnv+"=leaves an orphan")
	if err := child.Run(); err != nil {
		panic(err)
	}
}

// note writes this process's id beside its binary.
func note(self, what string) {
	path := filepath.Join(filepath.Dir(self), fmt.Sprintf("%s.%d.pid", what, os.Getpid()))
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		panic(err)
	}
}

// noted returns the ids of the processes that wrote one.
func noted(t *testing.T, dir string) []int {
	t.Helper()
	var pids []int
	for _, path := range must(filepath.Glob(filepath.Join(dir, "*.pid"))) {
		pids = append(pids, must(strconv.Atoi(strings.Split(filepath.Base(path), ".")[1])))
	}
	return pids
}

// fakeEngine makes the run's engine a copy of this test.
func (s *site) fakeEngine() string {
	s.t.Helper()
	dir := s.t.TempDir()
	from, err := os.Open(must(os.Executable()))
	if err != nil {
		s.t.Fatal(err)
	}
	defer from.Close() //nolint:errcheck // only read
	to, err := os.OpenFile(filepath.Join(dir, "terraform"), os.O_WRONLY|os.O_CREATE, 0o700)
	if err != nil {
		s.t.Fatal(err)
	}
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Close()); err != nil {
		s.t.Fatal(err)
	}
	s.job.Settings.Engine.Dir = dir
	return dir
}

// An engine that heeds no signal, a process in a session of its own that holds
// its output, a daemon that has cut every tie: all are gone, and the result is
// told, within the grace and two seconds. On a busy machine it may take longer
// now and then, and not every time.
func TestEverythingEndsWithinTheGrace(t *testing.T) {
	t.Parallel()
	const grace = 2 * time.Second
	var took []time.Duration
	for range 3 {
		once := endsEverything(t, grace)
		if took = append(took, once); once <= grace+2*time.Second {
			return
		}
	}
	t.Errorf("runs ended %s after the cancel, want one that does between the grace of %s and two seconds more", took, grace)
}

// endsEverything returns how long after a cancel all is gone.
func endsEverything(t *testing.T, grace time.Duration) time.Duration {
	t.Helper()
	s := newSite(t)
	s.job.Settings.CancelGrace = grace
	dir := s.fakeEngine()
	s.template(map[string]string{"main.tf": slow("true")}, nil)
	c := s.start()
	c.await("applying for ever")
	pids := noted(t, dir)
	for limit := patience.Begin(deadline); len(pids) < 3; pids = noted(t, dir) {
		if limit.Over() {
			t.Fatalf("processes = %v, want the engine, its grandchild and the daemon", pids)
		}
		limit.Pause()
	}
	for _, pid := range pids {
		if !alive(t, strconv.Itoa(pid)) {
			t.Fatalf("process %d is not alive before the cancel", pid)
		}
	}

	stopped := time.Now()
	if err := job.Write(c.control, job.Control{Stop: job.StopCancelled}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.dead:
	case <-patience.After(deadline):
		t.Fatal("the child does not end")
	}
	took := time.Since(stopped)
	for _, pid := range pids {
		if alive(t, strconv.Itoa(pid)) {
			t.Errorf("process %d is alive after its run", pid)
		}
	}
	t.Logf("all was gone %s after the cancel, with a grace of %s", took.Round(time.Millisecond), grace)
	if took < grace {
		t.Errorf("the run ended %s after the cancel, want it given its grace of %s", took, grace)
	}
	got := c.end()
	wantEnd(t, got, provision.Cancelled, provision.CodeCancelled)
	for _, want := range []string{"The run is interrupted and has 2s to stop on its own.", "everything it started is killed now"} {
		if !strings.Contains(c.text(), want) {
			t.Errorf("log lacks %q", want)
		}
	}
	s.wantNothingLeft()
	return took
}

// What an engine's child has started and left, and what ends after it, leaves no
// zombie while the run goes on.
func TestOrphansLeaveNoZombies(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.job.Settings.CancelGrace = 100 * time.Millisecond
	dir := s.fakeEngine()
	s.template(map[string]string{"main.tf": slow("true")}, nil)
	c := s.start()
	c.await("applying for ever")
	for limit := time.Now().Add(deadline); ; <-time.After(10 * time.Millisecond) { // between two looks
		pid, err := os.ReadFile(filepath.Join(dir, "orphan"))
		if err == nil && len(pid) > 0 {
			if _, err = os.Stat("/proc/" + string(pid)); errors.Is(err, os.ErrNotExist) {
				break
			}
		}
		if time.Now().After(limit) {
			status, _ := os.ReadFile("/proc/" + string(pid) + "/stat")
			t.Fatalf("the orphan %s is there though it has ended: %s", pid, status)
		}
	}
	if err := job.Write(c.control, job.Control{Stop: job.StopCancelled}); err != nil {
		t.Fatal(err)
	}
	wantEnd(t, c.end(), provision.Cancelled, provision.CodeCancelled)
}
