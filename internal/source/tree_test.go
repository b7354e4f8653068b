package source

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

// local is a Source that may read repo from disk, and a request for it.
func local(t *testing.T, repo *gittest.Repo) (*Source, Request) {
	t.Helper()
	s := newSource(t, Options{
		Policy:   job.Policy{Repos: []string{"file:///**"}, AllowFile: true},
		ReposDir: t.TempDir(),
	})
	return s, Request{Repo: repo.FileURL(), Version: repo.Git("rev-parse", "main")}
}

func TestEscapingLinks(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		files   gittest.Files
		refused bool
	}{
		"absolute":          {gittest.Files{"l": gittest.Symlink("/etc/passwd")}, true},
		"up":                {gittest.Files{"l": gittest.Symlink("../x")}, true},
		"up from below":     {gittest.Files{"a/b/l": gittest.Symlink("../../../x")}, true},
		"down and up":       {gittest.Files{"l": gittest.Symlink("a/../../x")}, true},
		"through a link":    {gittest.Files{"s/d": gittest.Symlink(".."), "l": gittest.Symlink("s/d/../x")}, true},
		"down, up again":    {gittest.Files{"a/l": gittest.Symlink("nowhere/../main.tf")}, true},
		"the directory":     {gittest.Files{"l": gittest.Symlink("..")}, true},
		"to the root":       {gittest.Files{"a/l": gittest.Symlink("..")}, false},
		"to a sibling":      {gittest.Files{"a/l": gittest.Symlink("../main.tf")}, false},
		"dangling":          {gittest.Files{"l": gittest.Symlink("nowhere")}, false},
		"circle":            {gittest.Files{"l": gittest.Symlink("m"), "m": gittest.Symlink("l")}, false},
		"through a file":    {gittest.Files{"l": gittest.Symlink("main.tf/x")}, false},
		"dots in its name":  {gittest.Files{"l": gittest.Symlink("..x")}, false},
		"two links, inside": {gittest.Files{"a/b/l": gittest.Symlink("../m"), "a/m": gittest.Symlink("../main.tf")}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repo := gittest.NewRepo(t)
			tt.files["main.tf"] = gittest.File("# root\n")
			repo.Commit(tt.files)
			s, req := local(t, repo)
			err := tryCheckout(t.Context(), t, s, req)
			if !tt.refused {
				if err != nil {
					t.Fatalf("Checkout = %v, want nil", err)
				}
				return
			}
			wantFailure(t, err, provision.CodePathRefused, "symbolic link", "leads out of the checkout")
		})
	}
}

func TestHostileTrees(t *testing.T) {
	t.Parallel()
	for name, entry := range map[string]string{
		"git directory":  ".git",
		"GIT directory":  ".GIT",
		"short git name": "git~1",
		"dot":            ".",
		"dots":           "..",
		"slash":          "a/b",
		"climbing":       "../../x",
		"absolute":       "/tmp/x",
		"backslash":      `a\b`,
		"new line":       "a\nb",
		"long":           strings.Repeat("n", 256),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repo := gittest.NewRepo(t)
			blob := repo.Hash("blob", []byte("# x\n"))
			repo.CommitTree(repo.Hash("tree", treeEntry(t, "100644", entry, blob)))
			s, req := local(t, repo)
			wantFailure(t, tryCheckout(t.Context(), t, s, req), provision.CodeCheckoutFailed, "refused")
		})
	}
}

func TestTwiceTheSameName(t *testing.T) {
	t.Parallel()
	repo := gittest.NewRepo(t)
	target := repo.Hash("blob", []byte("/tmp"))
	sub := repo.Hash("tree", treeEntry(t, "100644", "main.tf", repo.Hash("blob", nil)))
	// A link, and then a directory in its place: what would be written through
	// it if names were trusted.
	repo.CommitTree(repo.Hash("tree", append(treeEntry(t, "120000", "a", target), treeEntry(t, "40000", "a", sub)...)))
	s, req := local(t, repo)
	wantFailure(t, tryCheckout(t.Context(), t, s, req), provision.CodePathRefused, "leads out")

	target = repo.Hash("blob", []byte("b"))
	repo.CommitTree(repo.Hash("tree", append(treeEntry(t, "120000", "a", target), treeEntry(t, "40000", "a", sub)...)))
	req.Version = repo.Git("rev-parse", "main")
	wantFailure(t, tryCheckout(t.Context(), t, s, req), provision.CodeCheckoutFailed, "twice")
}

// treeEntry is an entry of a tree object as git stores it.
func treeEntry(t *testing.T, mode, name, hash string) []byte {
	t.Helper()
	id, err := hex.DecodeString(hash)
	if err != nil {
		t.Fatal(err)
	}
	return append(fmt.Appendf(nil, "%s %s\x00", mode, name), id...)
}

// Ten levels of ten times the same directory are ten billion files in a
// kilobyte of git.
func TestBomb(t *testing.T) {
	t.Parallel()
	repo := gittest.NewRepo(t)
	tree := repo.Hash("tree", treeEntry(t, "100644", "main.tf", repo.Hash("blob", nil)))
	for range 10 {
		var level bytes.Buffer
		for i := range 10 {
			level.Write(treeEntry(t, "40000", fmt.Sprint(i), tree))
		}
		tree = repo.Hash("tree", level.Bytes())
	}
	repo.CommitTree(tree)
	s, req := local(t, repo)
	s.limits.entries = 500
	wantFailure(t, tryCheckout(t.Context(), t, s, req), provision.CodeCheckoutFailed, "more than 500 files")
}

func TestLimits(t *testing.T) {
	t.Parallel()
	repo := gittest.NewRepo(t)
	repo.Commit(gittest.Text(map[string]string{"main.tf": strings.Repeat("#", 600<<10), "a/b/c/other.tf": strings.Repeat("x", 600<<10)}))
	s, req := local(t, repo)
	s.limits.bytes = 1 << 20
	wantFailure(t, tryCheckout(t.Context(), t, s, req), provision.CodeCheckoutFailed, "larger than 1 MB together")
	s.limits = defaultLimits
	s.limits.depth = 3
	wantFailure(t, tryCheckout(t.Context(), t, s, req), provision.CodeCheckoutFailed, "nested deeper than 3")
	s.limits = defaultLimits
	if err := tryCheckout(t.Context(), t, s, req); err != nil {
		t.Errorf("Checkout within the limits = %v, want nil", err)
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	repo := gittest.NewRepo(t)
	files := hello()
	files["json/main.tf.json"] = gittest.File("{}")
	files["vendored"] = gittest.Submodule(strings.Repeat("ab", 20))
	files["fake/main.tf/x"] = gittest.File("")
	repo.Commit(files)
	s, req := local(t, repo)
	for path, want := range map[string]string{
		"": ".", ".": ".", "modules/net": "modules/net", "modules//net/": "modules/net", "modules/current": "modules/current", "json": "json",
	} {
		req.Path = path
		dir := filepath.Join(t.TempDir(), "src")
		tree, err := s.Checkout(t.Context(), req, req.Version, dir)
		if err != nil || tree.Dir != filepath.Join(dir, want) {
			t.Errorf("Checkout(path %q) = %q, %v, want %s", path, tree.Dir, err, want)
		}
		if !strings.Contains(tree.Notice, "vendored") {
			t.Errorf("Checkout(path %q): notice = %q, want the submodule named", path, tree.Notice)
		}
	}
	for path, parts := range map[string][]string{
		"modules/met":      {`no directory "modules/met"`, "templates are in: modules/net"},
		"docs":             {`"docs" has no .tf`, "templates are in:", "modules/net", "json"},
		"docs/index.md":    {"is a file"},
		"fake":             {"no .tf"},
		"vendored":         {"submodule vendored"},
		"vendored/modules": {"submodule vendored"},
		"../etc":           {"climbs"},
		"/etc":             {"absolute"},
		"modules/../..":    {"climbs"},
	} {
		req.Path = path
		_, err := s.Checkout(t.Context(), req, req.Version, filepath.Join(t.TempDir(), "src"))
		wantFailure(t, err, provision.CodePathRefused, parts...)
	}
}

func TestNoTemplateAnywhere(t *testing.T) {
	t.Parallel()
	repo := gittest.NewRepo(t)
	repo.Commit(gittest.Text(map[string]string{"README.md": ""}))
	s, req := local(t, repo)
	wantFailure(t, tryCheckout(t.Context(), t, s, req), provision.CodePathRefused, "repository's root has no .tf", "no directory of the repository has any")
}

func TestDirIsEmptiedFirst(t *testing.T) {
	t.Parallel()
	repo := gittest.NewRepo(t)
	repo.Commit(hello())
	s, req := local(t, repo)
	outside := filepath.Join(t.TempDir(), "precious")
	dir := filepath.Join(t.TempDir(), "src")
	for name, content := range map[string]string{outside: "keep", filepath.Join(dir, "old/left.tf"): "x", filepath.Join(dir, "main.tf"): "mine"} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Dir(outside), filepath.Join(dir, "modules")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := s.Checkout(t.Context(), req, req.Version, dir); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, "old")); !os.IsNotExist(err) {
			t.Errorf("what was there before: %v, want it gone", err)
		}
		wantFile(t, filepath.Join(dir, "main.tf"), "# root\n")
		wantFile(t, outside, "keep")
	}

	link := filepath.Join(t.TempDir(), "src")
	if err := os.Symlink(filepath.Dir(outside), link); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Checkout(t.Context(), req, req.Version, link); err == nil {
		t.Error("Checkout into a link = nil error, want one")
	}
	wantFile(t, outside, "keep")
}
