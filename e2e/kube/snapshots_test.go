//go:build kube

package kube

import (
	"path/filepath"
	"strings"
	"testing"
)

// Each rendering that is kept beside the charts is what an API server takes, with
// every field known to it and no warning.
func TestSnapshotsAreAccepted(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../charts/testdata/*/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("snapshots of the charts = %v, %v, want those of both", files, err)
	}
	n := newNamespace(t, "platform") // theirs
	for _, file := range files {
		out, err := kubernetes.kubectl(t.Context(), "apply", "--dry-run=server", "--validate=strict", "--namespace", n.name, "--filename", file).CombinedOutput()
		if err != nil || strings.Contains(string(out), "Warning") {
			t.Errorf("kubectl apply of %s: %v\n%s", file, err, out)
		}
	}
}
