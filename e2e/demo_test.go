package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// nobody is an ordinary user that every Linux has.
const nobody = 65534

// trellis demo needs nothing but the binary, whoever runs it: PostgreSQL,
// migrations, a template, an agent, Terraform, and nothing left of it.
func TestDemo(t *testing.T) {
	t.Parallel()
	users := map[string]int{"self": os.Getuid()}
	if os.Getuid() == 0 {
		users["ordinary user"] = nobody
	}
	for name, uid := range users {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := pgtest.Dir(t)
			if err := os.Chown(dir, uid, -1); err != nil {
				t.Fatal(err)
			}
			out, err := demo(t, uid, dir)
			if err != nil {
				t.Fatalf("trellis demo as %s: %v\n%s", name, err, out)
			}
			for _, want := range []string{"step 1 of 8", "Apply complete! Resources: 2 added", "succeeded", "token = (sensitive)"} {
				if !strings.Contains(out, want) {
					t.Errorf("output lacks %q:\n%s", want, out)
				}
			}
			if left := processesUnder(t, dir); len(left) > 0 {
				t.Errorf("left running: %v", left)
			}
			if keys, err := filepath.Glob(filepath.Join(dir, ".config", "*", "key")); err != nil || len(keys) > 0 {
				t.Errorf("a demo has made a key of the person's: %v, %v", keys, err)
			}
			// What it holds survives: the second time is a second deploy.
			if out, err = demo(t, uid, dir); err != nil || !strings.Contains(out, "Run 2") {
				t.Errorf("second demo: %v, want provision 2:\n%s", err, out)
			}
		})
	}
}

func demo(t *testing.T, uid int, dir string) (string, error) {
	t.Helper()
	ctx, cancel := patience.Context(t.Context(), 2*site.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, site.Program("trellis"), "demo")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TRELLIS_DATA_DIR=" + filepath.Join(dir, "data"), "GORACE=atexit_sleep_ms=0"}
	cmd.Dir = dir
	if uid != os.Getuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// processesUnder lists processes that were started with the directory in their
// arguments or environment.
func processesUnder(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, p := range found {
		if pid, _ := strconv.Atoi(filepath.Base(p)); pid == os.Getpid() {
			continue
		}
		for _, file := range []string{"cmdline", "environ"} {
			content, err := os.ReadFile(filepath.Join(p, file))
			if err == nil && strings.Contains(string(content), dir) {
				left = append(left, p)
				break
			}
		}
	}
	return left
}

// Where neither PostgreSQL nor a way to fetch it is to be had, one sentence
// says what to install.
func TestUpWithoutPostgres(t *testing.T) {
	t.Parallel()
	dir := pgtest.Dir(t)
	ctx, cancel := patience.Context(t.Context(), site.Patience)
	defer cancel()
	// In a mount namespace of its own the installed one can be hidden; without
	// the right to make one, an empty PATH hides what PATH would find.
	script := "mount -t tmpfs none /usr/lib/postgresql && exec \"$0\" up --listen 127.0.0.1:0"
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "sh", "-c", script, site.Program("trellis"))
	if os.Getuid() != 0 {
		cmd = exec.CommandContext(ctx, "unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, site.Program("trellis"))
	}
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + dir, "TRELLIS_DATA_DIR=" + filepath.Join(dir, "data"), "TENDRIL_POSTGRES_REPOSITORY=http://127.0.0.1:1"}
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("trellis up without PostgreSQL succeeded:\n%s", out)
	}
	if cmd.ProcessState.ExitCode() != 1 && cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("exit code = %d", cmd.ProcessState.ExitCode())
	}
	for _, want := range []string{"apt-get install postgresql", "127.0.0.1:1"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("output lacks %q:\n%s", want, out)
		}
	}
	if n := strings.Count(string(out), "goroutine"); n > 0 {
		t.Errorf("output holds a stack trace:\n%s", out)
	}
}
