package scripts

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// repository is a repository of its own for a test.
type repository struct {
	t   *testing.T
	dir string
}

// who makes commits the same each time.
var who = []string{
	"GIT_AUTHOR_NAME=test", "GIT_AUTHOR_EMAIL=test@test.example", "GIT_AUTHOR_DATE=2026-01-02T03:04:05Z",
	"GIT_COMMITTER_NAME=test", "GIT_COMMITTER_EMAIL=test@test.example", "GIT_COMMITTER_DATE=2026-01-02T03:04:05Z",
	"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
}

// ourRepository is one that has the files of ours as they are now, and so what
// nobody has committed yet.
func ourRepository(t *testing.T, under ...string) repository {
	t.Helper()
	list := exec.CommandContext(t.Context(), "git", append([]string{"ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"}, under...)...)
	list.Dir = ".."
	names, err := list.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	r := repository{t, t.TempDir()}
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		from, to := filepath.Join("..", name), filepath.Join(r.dir, name)
		info, err := os.Stat(from)
		var content []byte
		if err == nil {
			content, err = os.ReadFile(from)
		}
		if errors.Is(err, os.ErrNotExist) {
			continue // removed, and not committed yet
		} else if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, content, info.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
	r.must("git", "init", "-q")
	r.commit()
	return r
}

func (r repository) commit() {
	r.t.Helper()
	r.must("git", "add", "-A")
	r.must("git", "commit", "-q", "--allow-empty", "-m", "test")
}

func (r repository) must(name string, args ...string) string {
	r.t.Helper()
	stdout, stderr, code := r.run(nil, name, args...)
	if code != 0 {
		r.t.Fatalf("%s %s: exit status %d\n%s%s", name, strings.Join(args, " "), code, stdout, stderr)
	}
	return stdout
}

// run runs a program there, with these variables beside the test's own.
func (r repository) run(environ []string, name string, args ...string) (stdout, stderr string, code int) {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), name, args...)
	cmd.Dir = r.dir
	cmd.Env = append(append(os.Environ(), who...), environ...)
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); cmd.ProcessState == nil {
		r.t.Fatalf("%s: %v", name, err)
	}
	return out.String(), complaints.String(), cmd.ProcessState.ExitCode()
}

func (r repository) write(name, content string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(content), 0o644); err != nil {
		r.t.Fatal(err)
	}
}
