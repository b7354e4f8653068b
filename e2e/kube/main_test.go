//go:build kube

package kube

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"go.uber.org/goleak"
)

// kubernetes is the one that TestMain has started.
var kubernetes *controlPlane

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
	dir, err := os.MkdirTemp("", "tendril-kube-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	helm, err := exec.LookPath("helm") // in the directory of all tools
	if err != nil {
		fmt.Fprintln(os.Stderr, "helm is missing: run these tests by `make e2e-kube`")
		return 1
	}
	if helm, err = filepath.Abs(helm); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	kubernetes, err = startControlPlane(context.Background(), dir, filepath.Dir(helm))
	defer kubernetes.stop()
	if err == nil {
		err = kubernetes.addMonitors(context.Background())
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "Kubernetes does not start: %v\n%s", err, kubernetes.said())
		return 1
	}
	code := m.Run()
	if code != 0 {
		fmt.Fprint(os.Stderr, kubernetes.said())
	}
	return code
}
