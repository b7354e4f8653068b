package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tendril-run/tendril/internal/testkit/outputtest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/raced"
)

func TestMain(m *testing.M) {
	// Most of them wait most of the time.
	if flag.Parse(); flag.Lookup("test.parallel").Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		if err := flag.Set("test.parallel", "4"); err != nil {
			panic(err) // a number is a number
		}
	}
	// Whose data directories these are, whatever HOME a test has.
	state, err := os.MkdirTemp("", "trellis-test-state-")
	if err == nil {
		err = os.Setenv("XDG_STATE_HOME", state)
	}
	if err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(state)
	if program.dir != "" {
		_ = os.RemoveAll(program.dir)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			_, _ = os.Stderr.WriteString("goleak: " + err.Error() + "\n")
			code = 1
		}
	}
	os.Exit(code)
}

// program is trellis, built once for the test process.
var program struct {
	once sync.Once
	dir  string
	path string
	err  error
}

func binary(t *testing.T) string {
	t.Helper()
	program.once.Do(func() {
		if program.dir, program.err = os.MkdirTemp("", "trellis-test-"); program.err != nil {
			return
		}
		program.path = filepath.Join(program.dir, "trellis")
		args := append(append([]string{"build", "-ldflags=-s -w"}, raced.Flags()...), "-o", program.path, ".")
		out, err := exec.CommandContext(context.Background(), "go", args...).CombinedOutput()
		if err != nil {
			program.err = errors.New(string(out))
		}
	})
	if program.err != nil {
		t.Fatalf("build trellis: %v", program.err)
	}
	return program.path
}

// result is what a finished verb said.
type result struct {
	code        int
	out, stderr string
}

// trellis runs a verb to its end.
func trellis(t *testing.T, args ...string) result {
	t.Helper()
	return trellisEnv(t, nil, args...)
}

func trellisEnv(t *testing.T, env []string, args ...string) result {
	t.Helper()
	cmd := command(t, env, args...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatalf("trellis %s: %v", strings.Join(args, " "), err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), stderr.String()}
}

func command(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary(t), args...)
	cmd.Dir = t.TempDir()
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "TRELLIS_") && !strings.HasPrefix(entry, "TENDRIL_") {
			cmd.Env = append(cmd.Env, entry)
		}
	}
	// The usual port may be taken by what else runs on this machine.
	cmd.Env = append(cmd.Env, "TRELLIS_CONFIG="+filepath.Join(cmd.Dir, "trellis.toml"), "TRELLIS_LISTEN=127.0.0.1:0")
	cmd.Env = append(cmd.Env, env...)
	// A signal first, so that nothing is left behind by a test that fails.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 2 * time.Minute
	return cmd
}

// session is a verb that goes on: up, demo, or one that follows.
type session struct {
	cmd  *exec.Cmd
	said *outputtest.Buffer
	done chan struct{}
}

func begin(t *testing.T, args ...string) *session {
	t.Helper()
	return beginEnv(t, nil, args...)
}

func beginEnv(t *testing.T, env []string, args ...string) *session {
	t.Helper()
	s := &session{cmd: command(t, env, args...), said: &outputtest.Buffer{}, done: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr = s.said, s.said
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.done)
		_ = s.cmd.Wait() // the exit code tells
	}()
	t.Cleanup(func() {
		s.signal(os.Interrupt)
		<-s.done
	})
	return s
}

func (s *session) signal(sig os.Signal) { _ = s.cmd.Process.Signal(sig) }

// await waits until the session has said something.
func (s *session) await(t *testing.T, text string) {
	t.Helper()
	patience.AwaitShowing(t, text, s.said.String, func() bool { return strings.Contains(s.said.String(), text) })
}

// end waits for the session's end and returns its exit code.
func (s *session) end(t *testing.T) int {
	t.Helper()
	select {
	case <-s.done:
	case <-patience.After(usual):
		t.Fatalf("it does not end; it said:\n%s", s.said)
	}
	return s.cmd.ProcessState.ExitCode()
}

// usual is how long a test waits for what must happen, on a machine that has much
// else to do.
const usual = 2 * time.Minute
