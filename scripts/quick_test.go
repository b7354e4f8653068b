package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// make quick takes the packages of what changed and those that import them, in the
// repository where it is called.
func TestQuickPicksWhatChanged(t *testing.T) {
	t.Parallel()
	script, err := filepath.Abs("quick.sh")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":         "module example/m\n\ngo 1.26\n",
		"low/low.go":     "package low\n",
		"low/data/a.sql": "SELECT 1;\n",
		"mid/mid.go":     "package mid\n\nimport _ \"example/m/low\"\n",
		"top/top.go":     "package top\n\nimport _ \"example/m/mid\"\n",
		"other/o.go":     "package other\n",
		"e2e/e2e.go":     "package e2e\n\nimport _ \"example/m/low\"\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b", "GOFLAGS=-mod=mod")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s %q: %v", name, args, err)
		}
		return string(out)
	}
	run("git", "init", "-q", "-b", "main")
	run("git", "add", ".")
	run("git", "commit", "-qm", "first")
	if err := os.WriteFile(filepath.Join(dir, "low/data/a.sql"), []byte("SELECT 2;\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Fields(run(script, "--list")), []string{"example/m/low", "example/m/mid"}; !slices.Equal(got, want) {
		t.Errorf("quick after a change of low's data = %q, want %q", got, want)
	}
	run("git", "commit", "-qam", "second")
	if err := os.WriteFile(filepath.Join(dir, "top/new.go"), []byte("package top\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Fields(run(script, "--list")), []string{"example/m/top"}; !slices.Equal(got, want) {
		t.Errorf("quick after a new file of top = %q, want %q", got, want)
	}
}
