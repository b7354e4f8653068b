package site

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// plain builds tendril as it ships, once, where the other programs are.
var plain = sync.OnceValues(func() (string, error) {
	path := filepath.Join(programs, "plain", "tendril")
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "./cmd/tendril")
	cmd.Dir, cmd.Env = root(), append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	return path + string(out), err
})

// Plain is a tendril without the race detector, which multiplies memory and
// time: for tests that measure one of them.
func Plain(t testing.TB) string {
	t.Helper()
	path, err := plain()
	if err != nil {
		t.Fatalf("building tendril: %v: %s", err, path)
	}
	return path
}
