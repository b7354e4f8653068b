package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// checkoutMemory is how much a run's process may take for a repository of any
// size.
const checkoutMemory = 96 << 20

// noise is n bytes that do not compress, others each time.
func noise(t *testing.T, random *rand.ChaCha8, path string, n int) {
	t.Helper()
	content := make([]byte, n)
	_, _ = random.Read(content) // never fails
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// largeRepo is a repository of four commits that holds unit × 100 bytes of what
// does not compress: two fifths of it in files that change with each commit,
// two in files that do not, one in a single file; and a file that grows a
// little each time, which git keeps as differences. It returns the second
// commit.
func largeRepo(t *testing.T, w *works, unit int) (repo *gittest.Repo, second string) {
	t.Helper()
	random := rand.NewChaCha8([32]byte{1})
	repo, _ = w.Git.Repo("large", gittest.Text(map[string]string{"main.tf": "# nothing\n"}), "")
	repo.Git("config", "core.bigFileThreshold", "250k") // what is larger is noise: git need not look for differences
	repo.Git("config", "core.compression", "0")
	dir := t.TempDir()
	git := func(args ...string) string {
		return repo.Git(append([]string{"-c", "core.bare=false", "--work-tree=" + dir}, args...)...)
	}
	noise(t, random, filepath.Join(dir, "assets/one"), 20*unit)
	for i := range 40 {
		noise(t, random, filepath.Join(dir, fmt.Sprintf("assets/same/%d", i)), unit)
	}
	const template = "resource \"terraform_data\" \"a\" {}\n"
	if err := os.WriteFile(filepath.Join(dir, "main.tf"), []byte(template), 0o600); err != nil {
		t.Fatal(err)
	}
	var grows []byte
	parent := repo.Git("rev-parse", "main")
	for n := range 4 {
		for i := range 10 {
			noise(t, random, filepath.Join(dir, fmt.Sprintf("assets/changes/%d", i)), unit)
		}
		for i := range 2000 {
			grows = fmt.Appendf(grows, "line %d of commit %d: %d\n", i, n, random.Uint64())
		}
		if err := os.WriteFile(filepath.Join(dir, "grows.txt"), grows, 0o600); err != nil {
			t.Fatal(err)
		}
		git("add", "--all")
		parent = git("commit-tree", "-m", "test", "-p", parent, git("write-tree"))
		if n == 1 {
			second = parent
		}
	}
	repo.Git("update-ref", "refs/heads/main", parent)
	repo.Git("tag", "v1", parent)
	return repo, second
}

// checkoutOf measures a run of a version of a repository.
func (w *works) checkoutOf(a *site.Agent, repo, workspace, version string) {
	w.T.Helper()
	w.Git.Reset()
	stop := watch(a)
	defer stop()
	began := time.Now()
	id := w.DeploySnapshot(w.T, fmt.Sprintf(`{"template_source": {"repo": %q, "version": %q}, "workspace": %q}`, repo, version, workspace))
	if got := w.AwaitEnd(id); got != "SUCCESS" {
		w.T.Fatalf("%s = %s (%s), want SUCCESS", version, got, w.Message(id))
	}
	took := time.Since(began)
	p := stop()
	w.T.Logf("%s: %.0f MB fetched, %s: %s", version, float64(w.Git.Requests().Bytes)/1e6, took.Round(time.Millisecond), p)
	// A run that fetches nothing may be over before it was looked at once.
	seen := p.child > 0 || w.Git.Requests().Packs == 0
	if p.child > checkoutMemory || !seen {
		w.T.Errorf("%s: %s, want at most %d MB of the child", version, p, checkoutMemory>>20)
	}
}

// A repository of 300 MB: once as little of it as there is to a tag, once all
// of its history, for a commit that no reference names; and each again from
// the mirror.
func TestLargeRepository(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	repo, second := largeRepo(t, w, times(300_000, 3_000_000))
	a := w.agent("one", 1, w.SharedState())
	a.Binary = site.Plain(t)
	a.Set("TENDRIL_GIT_TIMEOUT", patience.For(2*time.Minute).String())
	a.Start()
	for _, version := range []string{"v1", second} {
		if version == second {
			w.Git.OnlyWhole()
		}
		w.checkoutOf(a, repo.URL, "a", version)
		w.checkoutOf(a, repo.URL, "a", version)
		if got := w.Git.Requests().Packs; got != 0 {
			t.Errorf("packs fetched for a commit that is here = %d, want 0", got)
		}
		counted.add("faults: repository of very many MB", 1)
	}
	a.Terminate()
	w.count(a)
}

// The next version of a large file: up to a size it comes as the difference to
// the one that is here, which is held in memory for it; beyond, all of it does.
func TestNextVersionOfALargeFile(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	a := w.agent("one", 1, w.SharedState())
	a.Binary = site.Plain(t)
	// A part of it is how long the server may look for the difference, or else it
	// is asked for everything.
	a.Set("TENDRIL_GIT_TIMEOUT", patience.For(4*time.Minute).String())
	a.Start()
	for name, size := range map[string]int{"held": 15 << 20, "streamed": 20 << 20} {
		content := make([]byte, size)
		_, _ = rand.NewChaCha8([32]byte{2}).Read(content) // never fails
		files := gittest.Files{
			"main.tf":      gittest.File("resource \"terraform_data\" \"a\" {}\n"),
			"assets/large": gittest.File(string(content)),
		}
		repo, _ := w.Git.Repo(name, files, "v1")
		copy(content[size/2:], "changed")
		files["assets/large"] = gittest.File(string(content))
		repo.Tag("v2", repo.Commit(files))
		w.checkoutOf(a, repo.URL, name, "v1")
		w.checkoutOf(a, repo.URL, name, "v2")
		if got := w.Git.Requests().Bytes; (got < 1<<20) != (name == "held") {
			t.Errorf("%d bytes fetched of a file of %d that is to be %s", got, size, name)
		}
		counted.add("faults: repository of very many MB", 1)
	}
	a.Terminate()
	w.count(a)
}
