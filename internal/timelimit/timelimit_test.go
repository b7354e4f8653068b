package timelimit_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/timelimit"
)

func TestWhy(t *testing.T) {
	t.Parallel()
	sleep := func(ctx context.Context) error { return exec.CommandContext(ctx, "sleep", "1000").Run() }
	limited, cancel := timelimit.Context(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := timelimit.Why(limited, sleep(limited))
	if err == nil || err.Error() != "took longer than 20ms" || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Why after the limit = %v, want that it took longer than 20ms", err)
	}
	within, cancel := timelimit.Context(limited, time.Hour)
	defer cancel()
	if err := timelimit.Why(within, sleep(within)); err == nil || err.Error() != "took longer than 20ms" {
		t.Errorf("Why after an outer limit = %v, want the outer one", err)
	}
	stopped, stop := context.WithCancelCause(t.Context())
	stop(errors.New("the agent ends"))
	if err := timelimit.Why(stopped, sleep(stopped)); err == nil || err.Error() != "was interrupted: the agent ends" {
		t.Errorf("Why after a cancel = %v, want its cause", err)
	}
	generous, cancel := timelimit.Context(t.Context(), time.Hour)
	defer cancel()
	if err := timelimit.Why(generous, exec.CommandContext(generous, "false").Run()); err == nil || err.Error() != "exit status 1" {
		t.Errorf("Why of a failure = %v, want the failure", err)
	}
	if err := timelimit.Why(generous, nil); err != nil {
		t.Errorf("Why of a success = %v, want nil", err)
	}
}

func TestHead(t *testing.T) {
	t.Parallel()
	h := &timelimit.Head{Limit: 5}
	for _, part := range []string{"abc", "def", "ghi"} {
		if n, err := h.Write([]byte(part)); n != 3 || err != nil {
			t.Errorf("Write = %d, %v, want 3", n, err)
		}
	}
	if got := h.String(); got != "abcde" {
		t.Errorf("kept %q, want the first 5 bytes", got)
	}
}

// Every file that starts a child with a context takes its limits from here.
func TestEveryChildsLimitIsSaidAsOne(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	looked := 0
	for _, dir := range []string{"cmd", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/testkit/") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil || !strings.Contains(string(text), "exec.CommandContext(") {
				return err
			}
			looked++
			// How long an engine, a provisioner, or a local Ironic may run is said by who calls it.
			callers := strings.HasSuffix(path, "/terraform/command.go") || strings.HasSuffix(path, "/localironic/localironic.go") || strings.HasSuffix(path, "/conformance/program.go")
			if strings.Contains(string(text), "context.WithTimeout") || !callers && !strings.Contains(string(text), "timelimit.") {
				t.Errorf("%s starts a child and does not take its limit from package timelimit", path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if looked < 4 {
		t.Errorf("found %d files that start children, want at least 4: the test looks for the wrong words", looked)
	}
}
