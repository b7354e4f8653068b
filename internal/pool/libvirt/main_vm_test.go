//go:build vm

package libvirt

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tendril-run/tendril/internal/testkit/hypervisors"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// hosts are the hypervisors that TestMain has started.
var hosts []*hypervisors.Host

func TestMain(m *testing.M) {
	runtime.LockOSThread() // what it starts dies with this thread
	code := runTests(m)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func runTests(m *testing.M) int {
	images, err := hypervisors.Images()
	if err == nil {
		_, err = exec.LookPath("virsh")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp("", "tendril-vm-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx, cancel := patience.Context(context.Background(), 2*time.Minute)
	defer cancel()
	began := time.Now()
	files := []string{filepath.Join(images, "small.qcow2")}
	if os.Getenv("TENDRIL_TEST_VM") == "all" {
		files = append(files, filepath.Join(images, "debian.qcow2"))
	}
	hosts, err = hypervisors.Start(ctx, dir, files, "hv1", "hv2", "hv3")
	defer func() {
		for _, h := range hosts {
			h.Stop()
		}
	}()
	if err != nil {
		fmt.Fprintf(os.Stderr, "The hypervisors do not start: %v\n", err)
		return 1
	}
	fmt.Fprintf(os.Stderr, "three hypervisors after %s\n", time.Since(began).Round(time.Millisecond))
	return m.Run()
}
