package browsertest

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// panicEnv has this test program start a browser and panic.
const panicEnv = "TENDRIL_TEST_PANIC_WITH_BROWSER"

func panicWithBrowser() {
	var b browser
	path := os.Getenv(panicEnv)
	if err := b.start(path); err != nil {
		fmt.Println("cannot start", err)
		os.Exit(1)
	}
	fmt.Println(b.home)
	_, _ = os.Stdin.Read(make([]byte, 1))
	go panic("a test's goroutine panics: no clean-up runs")
	select {}
}

// No process of a browser outlives its test process, whatever ends that.
func TestBrowserEndsWithItsTests(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), panicEnv+"="+program(t))
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	home := strings.TrimSpace(line)
	if err != nil || !filepath.IsAbs(home) {
		t.Fatalf("the child says %q, %v, want where its browser keeps its files", line, err)
	}
	defer func() { _ = os.RemoveAll(home) }() // nobody else does, after a panic
	if started := using(t, home); len(started) < 2 {
		t.Errorf("processes of the browser = %q, want some: the test sees none", started)
	}
	_, _ = in.Write([]byte("\n"))
	if err := cmd.Wait(); err == nil {
		t.Error("the child did not panic")
	}
	deadline := patience.After(limit)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for left := using(t, home); len(left) > 0; left = using(t, home) {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("processes of the browser that outlive its test = %q, want none", left)
		}
	}
}

// using are the processes that name a directory.
func using(t *testing.T, dir string) (found []string) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		if line, err := os.ReadFile(path); err == nil && bytes.Contains(line, []byte(dir)) {
			found = append(found, path)
		}
	}
	return found
}
