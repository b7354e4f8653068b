package e2e

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// Agent and exec make themselves unreadable before they have read any secret:
// the kernel then gives their files in /proc to root, whoever they run as.
func TestProcessesAreUnreadable(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"run", "exec"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			dir := pgtest.Dir(t)
			cmd := exec.Command(site.Program("tendril"), verb)
			// A queue that cannot be reached keeps the agent waiting, a control
			// pipe on which nothing comes keeps exec waiting.
			cmd.Env = []string{"HOME=" + dir, "TENDRIL_DATA_DIR=" + dir + "/data", "TENDRIL_QUEUE_URL=postgres://x@127.0.0.1:1/x", "TENDRIL_API_TOKEN=tnd_x"}
			if os.Getuid() == 0 {
				if err := os.Chown(dir, nobody, -1); err != nil {
					t.Fatal(err)
				}
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
			}
			for range 4 { // the descriptors that exec inherits; the test keeps the other ends open
				r, w, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close() //nolint:errcheck // the test is over
				defer w.Close() //nolint:errcheck // the test is over
				cmd.ExtraFiles = append(cmd.ExtraFiles, r)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait() // killed
			}()
			limit := patience.Begin(site.Patience)
			for owner(t, cmd.Process.Pid) != 0 {
				if limit.Over() {
					t.Fatalf("/proc/PID/environ of tendril %s belongs to its user, want it unreadable", verb)
				}
				limit.Pause()
			}
		})
	}
}

func owner(t *testing.T, pid int) uint32 {
	t.Helper()
	var stat syscall.Stat_t
	if err := syscall.Stat("/proc/"+strconv.Itoa(pid)+"/environ", &stat); err != nil {
		t.Fatalf("the process is gone: %v", err)
	}
	return stat.Uid
}
