package pveversions

import (
	"os"
	"path/filepath"
	"testing"
)

// Beside reads a file of the folder shared, which lies beside the repository and is not part of
// it: recordings of Proxmox VE's own code. It answers nil where there is none; the test says then
// what it leaves out.
func Beside(t testing.TB, name string) []byte {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if data, err := os.ReadFile(filepath.Join(dir, "shared", name)); err == nil {
			return data
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
		dir = filepath.Dir(dir)
	}
}
