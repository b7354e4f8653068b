package devstack

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func files(content map[string]string) fs.FS {
	m := fstest.MapFS{}
	for name, text := range content {
		m[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return m
}

func commit(t *testing.T, dir string, content map[string]string, pins map[string]string) string {
	t.Helper()
	tag, err := commitSample(dir, files(content), pins)
	if err != nil {
		t.Fatalf("commitSample() = %v, want nil", err)
	}
	return tag
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"--git-dir", dir}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

var (
	first  = map[string]string{"main.tf": "# one\n", "modules/a/main.tf": "# a\n", "modules.tf": "# sorts before modules/\n"}
	second = map[string]string{"main.tf": "# two\n"}
)

// git itself reads what was written here: order of entries, modes and all.
func TestSampleIsAGitRepository(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "x.git")
	if tag := commit(t, dir, first, nil); tag != "v1" {
		t.Errorf("first tag = %s, want v1", tag)
	}
	git(t, dir, "fsck", "--strict", "--full")
	if got := git(t, dir, "ls-tree", "-r", "--name-only", "v1"); got != "main.tf\nmodules.tf\nmodules/a/main.tf" {
		t.Errorf("files of v1 = %q, want those committed", got)
	}
	for name, want := range first {
		if got := git(t, dir, "show", "v1:"+name) + "\n"; got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	clone := filepath.Join(t.TempDir(), "clone")
	cmd := exec.CommandContext(t.Context(), "git", "-c", "safe.directory=*", "clone", "-q", "file://"+dir, clone)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("git clone: %v\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Join(clone, "main.tf")); err != nil {
		t.Errorf("the clone has no main.tf: %v", err)
	}
}

func TestTagsNeverMove(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "x.git")
	commit(t, dir, first, nil)
	v1 := git(t, dir, "rev-parse", "v1")
	for _, tt := range []struct {
		content map[string]string
		want    string
	}{{first, "v1"}, {second, "v2"}, {second, "v2"}, {first, "v1"}} {
		if tag := commit(t, dir, tt.content, nil); tag != tt.want {
			t.Errorf("tag of %v = %s, want %s", slices.Sorted(maps.Keys(tt.content)), tag, tt.want)
		}
	}
	if got := git(t, dir, "rev-parse", "v1"); got != v1 {
		t.Errorf("v1 = %s, want %s as before", got, v1)
	}
	if got := git(t, dir, "tag"); got != "v1\nv2" {
		t.Errorf("tags = %q, want v1 and v2", got)
	}
}

func TestCommitIsAFunctionOfTheFiles(t *testing.T) {
	t.Parallel()
	one, two := filepath.Join(t.TempDir(), "x.git"), filepath.Join(t.TempDir(), "x.git")
	commit(t, one, first, nil)
	commit(t, two, second, nil)
	commit(t, two, first, nil)
	if a, b := git(t, one, "rev-parse", "v1"), git(t, two, "rev-parse", "v2"); a != b {
		t.Errorf("the same files are %s here and %s there, want one commit", a, b)
	}
}

// The repository was lost and the database remembers what v1 meant.
func TestPinnedVersionsAreTaken(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "x.git")
	pins := map[string]string{"v1": strings.Repeat("1", 40)}
	if tag := commit(t, dir, first, pins); tag != "v2" {
		t.Errorf("tag = %s, want v2", tag)
	}
	pins = map[string]string{"v2": git(t, dir, "rev-parse", "v2")}
	if tag := commit(t, dir, first, map[string]string{"v1": strings.Repeat("1", 40), "v2": pins["v2"]}); tag != "v2" {
		t.Errorf("tag = %s, want v2, which means this commit", tag)
	}
}

func TestSampleIsReadableByAll(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "x.git")
	commit(t, dir, first, nil)
	if err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil && (info.Mode().Perm()&0o444 != 0o444 || entry.IsDir() && info.Mode().Perm()&0o111 != 0o111) {
			t.Errorf("%s has mode %s, want it readable by all", name, info.Mode())
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
