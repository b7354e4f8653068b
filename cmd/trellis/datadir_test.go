package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// nobody is an ordinary user, for whom the default data directory is in their home.
const nobody = 65534

// ordinary runs a verb as an ordinary user, in a directory that is not their home.
func ordinary(t *testing.T, dir, home string, env []string, args ...string) result {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary(t), args...)
	cmd.Dir = dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "GORACE=atexit_sleep_ms=0"}, env...)
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	_ = cmd.Run() // the exit code says it
	return result{cmd.ProcessState.ExitCode(), out.String(), stderr.String()}
}

// own gives everything below a directory to that user.
func own(t *testing.T, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	if err := filepath.Walk(dir, func(path string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, nobody, nobody)
	}); err != nil {
		t.Fatal(err)
	}
}

// A cloned repository may bring a .tendril with a program in PostgreSQL's place and
// a server that collects tokens and variables. Neither is used.
func TestInAClonedRepository(t *testing.T) {
	t.Parallel()
	if out, err := exec.CommandContext(t.Context(), "chmod", "0755", filepath.Dir(binary(t))).CombinedOutput(); err != nil {
		t.Fatalf("let the ordinary user reach the program: %v %s", err, out)
	}
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(server.Close)
	top := pgtest.Dir(t)
	clone, home, witness := filepath.Join(top, "clone"), filepath.Join(top, "home"), filepath.Join(top, "home", "executed")
	bin := filepath.Join(clone, ".tendril", "postgres", "postgres-bin", "18.3.0", "bin")
	for _, dir := range []string{bin, home} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for path, text := range map[string]string{
		filepath.Join(bin, "postgres"):                     "#!/bin/sh\necho \"$@\" >> " + witness + "\necho 'postgres (PostgreSQL) 18.3'\n",
		filepath.Join(bin, "initdb"):                       "#!/bin/sh\necho \"$@\" >> " + witness + "\n",
		filepath.Join(clone, ".tendril", "lock"):           "1\n",
		filepath.Join(clone, ".tendril", "runtime.json"):   `{"url": "` + server.URL + `", "api_token": "trt_theirs"}`,
		filepath.Join(clone, ".tendril", "trellis-up"):     strings.Repeat("0", 64) + "\n",
		filepath.Join(clone, "data", "runtime.json"):       `{"url": "` + server.URL + `", "api_token": "trt_theirs"}`,
		filepath.Join(clone, "data", "trellis-up"):         strings.Repeat("0", 64) + "\n",
		filepath.Join(clone, "data", "lock"):               "1\n",
		filepath.Join(clone, "data", "postgres", "README"): "",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"postgres", "initdb"} {
		if err := os.Chmod(filepath.Join(bin, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	own(t, top)
	// A start that has come this far would stop at the port.
	up := []string{"up", "--listen", takenAddress(t)}
	ordinary(t, clone, home, nil, up...).want(t, "up beside a .tendril", exitUsage, "has the data of an earlier version", "--move-from .tendril", filepath.Join(home, ".local/share/tendril"))
	ordinary(t, clone, home, nil, append(up, "--data-dir", ".tendril")...).want(t, "up on a directory of somebody else's", exitFailed, "not written here by this user's trellis up", "--trust-data-dir")
	ordinary(t, clone, home, nil, "status").want(t, "status beside a .tendril", exitUnreachable, "trellis up is not running")
	ordinary(t, clone, home, nil, "status", "--data-dir", "data").want(t, "status of a directory of somebody else's", exitFailed, "not written here by this user's trellis up")
	if text, err := os.ReadFile(witness); err == nil {
		t.Errorf("the clone's program was executed: %s", text)
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the clone's server was asked %d times, want never", n)
	}
	// The person says that it is theirs.
	ordinary(t, clone, home, nil, append(up, "--move-from", ".tendril")...).want(t, "up --move-from", exitFailed, "Moved the data from .tendril to "+filepath.Join(home, ".local/share/tendril"), "address already in use")
	if _, err := os.Lstat(filepath.Join(clone, ".tendril")); err == nil {
		t.Error(".tendril is still there after the move")
	}
}

// Other machines are not let in over plain HTTP unless somebody says so.
func TestUpForOtherMachines(t *testing.T) {
	t.Parallel()
	dir := pgtest.Dir(t)
	for _, listen := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0"} {
		trellis(t, "up", "--data-dir", dir, "--listen", listen).want(t, "up --listen "+listen, exitUsage, "in the clear", "--tls-cert", "--allow-http")
	}
	trellis(t, "up", "--data-dir", dir, "--listen", "0.0.0.0:0", "--tls-cert", "x").want(t, "up with half a certificate", exitUsage, "give both")
	s := begin(t, "up", "--data-dir", dir, "--listen", "0.0.0.0:0", "--allow-http")
	s.await(t, "Ctrl-C ends everything.")
	if !strings.Contains(s.said.String(), "link --public-url http://") {
		t.Errorf("up --allow-http says nothing of browsers on other machines:\n%s", s.said)
	}
	trellis(t, "status", "--data-dir", dir).want(t, "status by the loopback", exitOK, "Nothing has been deployed yet.")
	s.signal(os.Interrupt)
	if code := s.end(t); code != exitOK {
		t.Errorf("up --allow-http ends with %d, want %d:\n%s", code, exitOK, s.said)
	}
}

// takenAddress is an address that somebody listens on.
func takenAddress(t *testing.T) string {
	t.Helper()
	taken := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(taken.Close)
	return taken.Listener.Addr().String()
}
