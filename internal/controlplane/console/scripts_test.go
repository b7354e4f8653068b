package console_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The log's modules that need no browser are tested by Node's own runner.
func TestLogScripts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// The page says of its scripts that they are modules; Node wants to read so.
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"type": "module"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{"assets/log", "testdata/log"} {
		if err := os.CopyFS(filepath.Join(dir, from), os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	cases, err := os.ReadFile("../../printable/testdata/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "testdata/log/cases.json"), cases, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", "--test", "testdata/log/cases.test.mjs", "testdata/log/announce.test.mjs", "testdata/log/lines.test.mjs", "testdata/log/source.test.mjs")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("node --test = %v, want all to pass:\n%s", err, out)
	}
}
