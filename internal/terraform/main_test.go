package terraform

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// TestMain makes the test binary its own fake engine: started under an
// engine's name, or with fakeMode set, it plays one of the fakes.
func TestMain(m *testing.M) {
	name := filepath.Base(os.Args[0])
	if os.Getenv(fakeMode) != "" || name == Terraform || name == OpenTofu || strings.HasPrefix(name, Terraform+"_") {
		syscall.Exit(playEngine()) // os.Exit would wait a second for the race detector
	}
	if os.Getenv(installerEnv) != "" {
		syscall.Exit(playInstaller())
	}
	goleak.VerifyTestMain(m)
}
