package secretfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A Secret that Kubernetes mounts is no file whose mode anybody can change.
func TestMountedSecret(t *testing.T) {
	t.Parallel()
	const secret = "tnd_testtoken"
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "..v1"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "..v1", "token")
	if err := os.WriteFile(file, []byte(secret), 0o640); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"..data": "..v1", "token": "..data/token"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := Read(filepath.Join(dir, "token")); got != secret || err != nil {
		t.Errorf("Read(mounted Secret) = %q, %v, want what is in it", got, err)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(filepath.Join(dir, "token")); err == nil || !strings.Contains(err.Error(), "defaultMode: 0440") {
		t.Errorf("Read(mounted Secret, 0644) error = %v, want one that says defaultMode: 0440", err)
	}
}
