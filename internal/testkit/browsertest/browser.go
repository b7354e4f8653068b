package browsertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"
)

// programEnv names the browser to test with.
const programEnv = "TENDRIL_TEST_CHROMIUM"

// shared is the process's browser. A test process is the one place where such a
// thing cannot be handed down: testing.M passes nothing to tests.
var shared browser

// browser is a lazily started Chromium.
type browser struct {
	mu     sync.Mutex
	closed bool
	ctx    context.Context // of the browser, for its tabs
	cancel context.CancelFunc
	leader *exec.Cmd
	home   string
	err    error
}

// runner runs the tests of a package.
type runner struct {
	tests interface{ Run() int }
}

// With runs a package's tests and ends their browser.
func With(m interface{ Run() int }) interface{ Run() int } { return runner{m} }

// Run implements the interface of testing.M that is wanted.
func (r runner) Run() int {
	defer func() { _ = shared.close() }() // where a test has panicked
	code := r.tests.Run()
	if err := shared.close(); err != nil {
		fmt.Fprintln(os.Stderr, "browsertest:", err)
		code = max(code, 1)
	}
	return code
}

func program(t testing.TB) string {
	t.Helper()
	for _, name := range []string{os.Getenv(programEnv), "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			return path
		}
	}
	t.Fatalf("there is no Chromium: run `make deps`, or set %s to the program", programEnv)
	return ""
}

// get starts the browser if no test did before. A failed start is final.
func (b *browser) get(t testing.TB) context.Context {
	t.Helper()
	path := program(t)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		t.Fatal("browsertest: the browser has ended already")
	}
	if b.ctx == nil && b.err == nil {
		b.err = b.start(path)
	}
	if b.err != nil {
		t.Fatalf("start %s: %v", path, b.err)
	}
	return b.ctx
}

func (b *browser) start(path string) (err error) {
	// Chromium keeps more in a home than in its profile.
	if b.home, err = os.MkdirTemp("", "tendril-browsertest-"); err != nil {
		return err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path),
		chromedp.DisableGPU,
		chromedp.NoSandbox, // needs rights that a container does not give; what is shown is our own
		chromedp.UserDataDir(b.home+"/profile"),
		chromedp.Env("HOME="+b.home, "XDG_CONFIG_HOME="+b.home, "XDG_CACHE_HOME="+b.home),
		// A group of its own, to be killed as a whole; and by the kernel when
		// this process ends without doing so.
		chromedp.ModifyCmdFunc(func(cmd *exec.Cmd) {
			b.leader = cmd
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		}),
	)
	// Not a test's context: the browser outlives the test that starts it.
	allocator, endAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, end := chromedp.NewContext(allocator, chromedp.WithErrorf(func(string, ...any) {})) // of events newer than the library
	b.cancel = func() { end(); endAllocator() }
	if err := chromedp.Do(ctx); err != nil {
		return err
	}
	b.ctx = ctx
	return nil
}

// close kills the browser with all that it started and waits for it. Further
// calls do nothing.
func (b *browser) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	if b.cancel != nil {
		b.cancel()
	}
	var problems []error
	if b.leader != nil && b.leader.Process != nil {
		if err := syscall.Kill(-b.leader.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			problems = append(problems, fmt.Errorf("end the browser: %w", err))
		}
	}
	if b.home != "" {
		problems = append(problems, os.RemoveAll(b.home))
	}
	return errors.Join(problems...)
}
