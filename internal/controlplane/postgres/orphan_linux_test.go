package postgres

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// startParent runs a program that starts a server in dir, and returns it with
// the server's pid.
func startParent(t *testing.T, dir string) (*exec.Cmd, int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), parentEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the parent said %q: %v", line, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatalf("the parent said %q", line)
	}
	return cmd, pid
}

func TestServerDiesWithItsParent(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	parent, pid := startParent(t, dir)
	if !servesData(pid, filepath.Join(dir, "data")) {
		t.Fatalf("process %d is not the server", pid)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // its lock goes with its last thread
	patience.Await(t, "the server ends", func() bool { return len(processesOf(filepath.Join(dir, "data"))) == 0 })
	log, err := os.ReadFile(filepath.Join(dir, logName))
	if err != nil || !strings.Contains(string(log), "received fast shutdown request") {
		t.Errorf("log = %s, %v, want a fast shutdown", log, err)
	}
	start(t, options(dir))
}

func TestHolderInAnotherProcessIsNamed(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	parent, _ := startParent(t, dir)
	_, err := Start(t.Context(), options(dir))
	want := fmt.Sprintf("in use by process %d on ", parent.Process.Pid)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Start = %v, want it to contain %q", err, want)
	}
}

// TestLivingOrphanIsStopped has a server with nobody above it that would take
// it along, as on systems without a parent-death signal.
func TestLivingOrphanIsStopped(t *testing.T) {
	t.Parallel()
	o := options(newDir(t))
	s := start(t, o)
	execute(t, s, "CREATE TABLE kept ()")
	bin, data := s.bin(t), s.data()
	stop(t, s)

	orphan := s.account.command(bin.postgres(), "-D", data, "-c", "listen_addresses=", "-c", "unix_socket_directories="+data)
	if err := orphan.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- orphan.Wait() }()
	patience.Await(t, "the orphan is ready", func() bool {
		text, _ := os.ReadFile(filepath.Join(data, "postmaster.pid"))
		return strings.Contains(string(text), "ready")
	})
	execute(t, start(t, o), "TABLE kept")
	if err := <-ended; err != nil {
		t.Errorf("the orphan ended with %v, want a clean shutdown", err)
	}
}

// TestBackendsOfAKilledPostmaster has one that is too busy to see that its
// postmaster is gone and keeps the shared memory.
func TestBackendsOfAKilledPostmaster(t *testing.T) {
	t.Parallel()
	o := options(newDir(t))
	s := start(t, o)
	execute(t, s, "CREATE TABLE kept ()")
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	busy := make(chan error, 1)
	go func() {
		// Without touching the client: a loop that only calculates.
		_, err := conn.Exec(context.Background(), "DO $$ BEGIN LOOP END LOOP; END $$")
		busy <- err
	}()
	patience.Await(t, "the backend is busy", func() bool {
		return query(t, s, "SELECT count(*)::text FROM pg_stat_activity WHERE query LIKE 'DO %' AND state = 'active'") == "1"
	})
	_ = s.process.Kill()
	<-s.Done()
	if len(processesOf(s.data())) == 0 {
		t.Fatal("no backend outlived its postmaster; this test tests nothing")
	}
	s.lock.Release() // as when the parent dies too
	execute(t, start(t, o), "TABLE kept")
	if err := <-busy; err == nil {
		t.Error("the busy query ended well")
	}
	_ = conn.Close(context.Background())
}

func TestStalePidFile(t *testing.T) {
	t.Parallel()
	o := options(newDir(t))
	s := start(t, o)
	account, data := s.account, s.data()
	stop(t, s)

	// A process of the server's own account is what PostgreSQL itself takes for
	// a running postmaster.
	other := account.command("/bin/cat")
	in, err := other.StdinPipe() // ends it, also when this test dies
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = in.Close(), other.Wait() }()
	dead := account.command("/bin/true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"another process": fmt.Sprintf("%d\n%s\n", other.Process.Pid, data),
		"a dead process":  fmt.Sprintf("%d\n%s\n", dead.Process.Pid, data),
		"nothing":         "",
		"rubbish":         "rubbish\n",
	} {
		path := filepath.Join(data, "postmaster.pid")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := account.own(path); err != nil {
			t.Fatal(err)
		}
		s, err := Start(t.Context(), o)
		if err != nil {
			t.Errorf("Start with a pid file of %s = %v", name, err)
			continue
		}
		stop(t, s)
	}
	if err := other.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the other process was touched: %v", err)
	}
}

// bin is the programs that serve s.
func (s *Server) bin(t *testing.T) binaries {
	t.Helper()
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", s.process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return binaries{dir: filepath.Dir(exe)}
}
