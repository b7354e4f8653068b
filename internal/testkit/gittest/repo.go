package gittest

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Entry is what a path holds in a commit.
type Entry struct {
	mode string
	data string
}

// Files is the whole tree of a commit, by slash-separated path.
type Files map[string]Entry

// File is a plain file.
func File(content string) Entry { return Entry{"100644", content} }

// Executable is a file with its executable bit set.
func Executable(content string) Entry { return Entry{"100755", content} }

// Symlink points to target.
func Symlink(target string) Entry { return Entry{"120000", target} }

// Submodule is a link to a commit of another repository.
func Submodule(commit string) Entry { return Entry{"160000", commit} }

// Text is Files of plain files.
func Text(files map[string]string) Files {
	all := Files{}
	for path, content := range files {
		all[path] = File(content)
	}
	return all
}

// Repo is a bare repository with a branch main.
type Repo struct {
	// Dir is where it lies.
	Dir string
	// URL is where it is served; "" when no server does.
	URL string

	t testing.TB
}

// NewRepo makes a bare repository that no server serves.
func NewRepo(t testing.TB) *Repo {
	t.Helper()
	return initRepo(t, filepath.Join(t.TempDir(), "repo.git"))
}

// Repo makes a bare repository at URL/NAME.git with one commit of the given
// files on main and, when tag is not "", a lightweight tag on it.
func (s *Server) Repo(name string, files Files, tag string) (*Repo, string) {
	s.t.Helper()
	r := initRepo(s.t, filepath.Join(s.Root, filepath.FromSlash(name)+".git"))
	r.URL = s.URL + "/" + name + ".git"
	commit := r.Commit(files)
	if tag != "" {
		r.Tag(tag, commit)
	}
	return r, commit
}

// FileURL is the repository's file:// address.
func (r *Repo) FileURL() string { return "file://" + r.Dir }

// Commit adds a commit of exactly these files to main and returns its id.
func (r *Repo) Commit(files Files) string { return r.CommitTo("main", files) }

// CommitTo adds a commit to a branch, which it makes when missing.
func (r *Repo) CommitTo(branch string, files Files) string {
	r.t.Helper()
	ref := "refs/heads/" + branch
	var in bytes.Buffer
	fmt.Fprintf(&in, "commit %s\ncommitter Test <test@example.com> 1700000000 +0000\ndata 4\ntest\n", ref)
	if _, err := r.try("rev-parse", "--verify", "--quiet", ref); err == nil {
		fmt.Fprintf(&in, "from %s^0\n", ref)
	}
	in.WriteString("deleteall\n")
	for _, path := range slices.Sorted(maps.Keys(files)) {
		entry := files[path]
		if entry.mode == "160000" {
			fmt.Fprintf(&in, "M 160000 %s %s\n", entry.data, path)
			continue
		}
		fmt.Fprintf(&in, "M %s inline %s\ndata %d\n%s\n", entry.mode, path, len(entry.data), entry.data)
	}
	r.run(&in, "fast-import", "--quiet", "--force")
	return r.Git("rev-parse", ref)
}

// Tag makes a lightweight tag, or moves one.
func (r *Repo) Tag(name, commit string) {
	r.t.Helper()
	r.Git("tag", "--force", name, commit)
}

// AnnotatedTag makes a tag object, or replaces one.
func (r *Repo) AnnotatedTag(name, commit string) {
	r.t.Helper()
	r.Git("tag", "--force", "--annotate", "--message", name, name, commit)
}

// Hash stores an object of any content, one that git would not make included,
// and returns its id.
func (r *Repo) Hash(kind string, content []byte) string {
	r.t.Helper()
	return r.run(bytes.NewBuffer(content), "hash-object", "-t", kind, "--literally", "-w", "--stdin")
}

// CommitTree makes main a commit of the given tree object.
func (r *Repo) CommitTree(tree string) string {
	r.t.Helper()
	commit := r.Git("commit-tree", "-m", "test", tree)
	r.Git("update-ref", "refs/heads/main", commit)
	return commit
}

// Git runs git in the repository and returns what it prints, trimmed.
func (r *Repo) Git(args ...string) string {
	r.t.Helper()
	return r.run(nil, args...)
}

func initRepo(t testing.TB, dir string) *Repo {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r := &Repo{t: t, Dir: dir}
	r.Git("init", "--quiet", "--bare", "--initial-branch=main", ".")
	return r
}

func (r *Repo) run(stdin *bytes.Buffer, args ...string) string {
	r.t.Helper()
	out, err := r.start(stdin, args...)
	if err != nil {
		r.t.Fatalf("git %s: %v", strings.Join(args, " "), err)
	}
	return out
}

func (r *Repo) try(args ...string) (string, error) { return r.start(nil, args...) }

func (r *Repo) start(stdin *bytes.Buffer, args ...string) (string, error) {
	cmd := exec.CommandContext(r.t.Context(), "git", args...)
	cmd.Dir = r.Dir
	cmd.Env = environment(r.Dir)
	if stdin != nil {
		cmd.Stdin = stdin
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, stderr.String())
	}
	return strings.TrimSpace(stdout.String()), nil
}

// Content is what a path holds: a file's bytes or a link's target.
func (f Files) Content(path string) string { return f[path].data }
