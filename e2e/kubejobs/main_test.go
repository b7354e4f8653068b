//go:build kube

package kubejobs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/tendril-run/tendril/e2e/site"
)

// node is the cluster that all tests share.
var node *cluster

func TestMain(m *testing.M) { site.MainStatic(withNode{m}, "tendril-dispatcher") }

// withNode has a node for as long as the tests run.
type withNode struct{ m *testing.M }

func (w withNode) Run() int {
	helm, err := exec.LookPath("helm") // in the directory of all tools
	if err != nil || os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "run these tests as root, by `make e2e-kube`")
		return 1
	}
	helm, err = filepath.Abs(helm)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	node, err = startCluster(filepath.Dir(helm))
	defer node.stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "Kubernetes does not start:", err)
		return 1
	}
	code := w.m.Run()
	if code != 0 {
		fmt.Fprint(os.Stderr, node.said())
	}
	return code
}
