package bench

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/source"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

// A repository of 100 MB by what a deploy finds: nothing of it on this machine,
// this very commit, or the tag before; beside git doing the same.
func BenchmarkCheckoutLarge(b *testing.B) {
	server := gittest.NewServer(b)
	repo := largeRepo(b, server)
	for b.Loop() {
		// git keeps one clone with a work tree beside it, which is how we do it
		// with one mirror.
		ours, bare := newCheckout(b, server, repo), newGitCheckout(b, server, repo)
		b.ReportMetric(milliseconds(bare.clone("v1")), "bare-first-ms")
		b.ReportMetric(milliseconds(ours.run("v1")), "first-ms")
		b.ReportMetric(milliseconds(bare.again("v1")), "bare-again-ms")
		b.ReportMetric(milliseconds(ours.run("v1")), "again-ms")
		b.ReportMetric(milliseconds(bare.next("v2")), "bare-next-ms")
		server.Reset()
		b.ReportMetric(milliseconds(ours.run("v2")), "next-ms")
		b.ReportMetric(mb(server.Requests().Bytes), "next-fetched-MB")
		ours.remove()
		bare.remove()
	}
	only(b)
}

// What every run of a small template pays once its commit is here.
func BenchmarkCheckoutSmall(b *testing.B) {
	const times = 30
	server := gittest.NewServer(b)
	repo, _ := server.Repo("small", gittest.Text(map[string]string{"main.tf": helloTemplate, "README.md": "# Hello\n"}), "v1")
	for b.Loop() {
		ours, bare := newCheckout(b, server, repo), newGitCheckout(b, server, repo)
		bare.clone("v1")
		ours.run("v1")
		var git, resolve, checkout series
		for range times {
			git.add(bare.again("v1"))
			began := time.Now()
			commit := ours.resolve("v1")
			resolve.add(time.Since(began))
			checkout.add(ours.timed("v1", func() { ours.checkout("v1", commit) }))
		}
		git.report(b, "bare-", 50)
		resolve.report(b, "resolve-", 50)
		checkout.report(b, "checkout-", 50)
		b.ReportMetric(milliseconds(resolve.percentile(50)+checkout.percentile(50)), "p50-ms")
	}
	only(b)
}

// checkout is package source with a cache of its own.
type checkout struct {
	b    *testing.B
	opts source.Options
	repo *gittest.Repo
	// A new one each time: to write where as much was just removed is slow on
	// ext4, whoever does it.
	trees string
	dir   string
}

func newCheckout(b *testing.B, server *gittest.Server, repo *gittest.Repo) *checkout {
	b.Helper()
	return &checkout{b, source.Options{
		Policy: job.Policy{Repos: []string{server.URL + "/**"}}, Git: job.Git{CAFile: server.CAFile, Timeout: time.Minute},
		ReposDir: b.TempDir(),
	}, repo, b.TempDir(), ""}
}

// timed measures a checkout into a new directory, and compares it with the tag.
func (c *checkout) timed(version string, do func()) time.Duration {
	c.b.Helper()
	var err error
	if c.dir, err = os.MkdirTemp(c.trees, ""); err != nil {
		c.b.Fatal(err)
	}
	began := time.Now()
	do()
	took := time.Since(began)
	want := c.repo.Git("cat-file", "blob", version+":main.tf") + "\n"
	if got, err := os.ReadFile(filepath.Join(c.dir, "main.tf")); err != nil || string(got) != want {
		c.b.Fatalf("main.tf of %s is %q, %v, want %q", version, got, err, want)
	}
	return took
}

// remove removes all that was written.
func (c *checkout) remove() {
	c.b.Helper()
	for _, dir := range []string{c.trees, c.opts.ReposDir} {
		if err := os.RemoveAll(dir); err != nil {
			c.b.Fatal(err)
		}
	}
}

// source is a new one, as each run's process has.
func (c *checkout) source() *source.Source {
	c.b.Helper()
	s, err := source.New(c.opts)
	if err != nil {
		c.b.Fatal(err)
	}
	return s
}

func (c *checkout) request(version string) source.Request {
	return source.Request{Repo: c.repo.URL, Version: version}
}

func (c *checkout) resolve(version string) (commit string) {
	c.b.Helper()
	resolved, err := c.source().Resolve(c.b.Context(), c.request(version))
	if err != nil {
		c.b.Fatal(err)
	}
	return resolved.Commit
}

func (c *checkout) checkout(version, commit string) {
	c.b.Helper()
	if _, err := c.source().Checkout(c.b.Context(), c.request(version), commit, c.dir); err != nil {
		c.b.Fatal(err)
	}
}

// run is all of it.
func (c *checkout) run(version string) time.Duration {
	c.b.Helper()
	return c.timed(version, func() { c.checkout(version, c.resolve(version)) })
}

// gitCheckout is git doing as much: asking what a tag means, fetching it alone,
// and writing its files to an empty directory.
type gitCheckout struct {
	*checkout
	caFile string
	clones string
}

func newGitCheckout(b *testing.B, server *gittest.Server, repo *gittest.Repo) *gitCheckout {
	b.Helper()
	return &gitCheckout{newCheckout(b, server, repo), server.CAFile, filepath.Join(b.TempDir(), "clone")}
}

func (c *gitCheckout) git(args ...string) {
	c.b.Helper()
	cmd := exec.CommandContext(c.b.Context(), "git", args...)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + c.trees, "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_SSL_CAINFO=" + c.caFile,
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		c.b.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// clone begins without anything.
func (c *gitCheckout) clone(version string) time.Duration {
	c.b.Helper()
	return c.timed(version, func() {
		c.git("clone", "--quiet", "--bare", "--depth", "1", "--branch", version, c.repo.URL, c.clones)
		c.write(version)
	})
}

// again asks what the tag means, for it may have moved, and writes what is here.
func (c *gitCheckout) again(version string) time.Duration {
	c.b.Helper()
	return c.timed(version, func() {
		c.git("ls-remote", "--quiet", c.repo.URL, "refs/tags/"+version, "refs/tags/"+version+"^{}")
		c.write(version)
	})
}

// next fetches another tag.
func (c *gitCheckout) next(version string) time.Duration {
	c.b.Helper()
	return c.timed(version, func() {
		c.git("-C", c.clones, "fetch", "--quiet", "--depth", "1", "origin", "refs/tags/"+version+":refs/tags/"+version)
		c.write(version)
	})
}

func (c *gitCheckout) write(version string) {
	c.b.Helper()
	c.git("--git-dir", c.clones, "--work-tree", c.dir, "checkout", "--quiet", "--force", version, "--", ".")
}

// largeRepo is a repository of 100 MB that does not compress, in files from
// 10 kB to 20 MB. Of it v2 changes two small files.
func largeRepo(b *testing.B, server *gittest.Server) *gittest.Repo {
	b.Helper()
	random := rand.NewChaCha8([32]byte{1})
	noise := func(n int) string {
		content := make([]byte, n)
		_, _ = random.Read(content) // never fails
		return string(content)
	}
	files := map[string]string{"assets/one": noise(20_000_000)}
	for i := range 60 {
		files[fmt.Sprintf("assets/large/%d", i)] = noise(1_000_000)
	}
	for i := range 2000 {
		files[fmt.Sprintf("assets/small/%d/%d", i%20, i)] = noise(10_000)
	}
	repo, _ := server.Repo("large", gittest.Text(map[string]string{"main.tf": helloTemplate}), "")
	repo.Git("config", "core.bigFileThreshold", "250k") // git need not look for differences
	repo.Git("config", "core.compression", "0")
	for i, tag := range []string{"v1", "v2"} {
		files["main.tf"] = fmt.Sprintf("# %s\n%s", tag, helloTemplate)
		files["CHANGES.md"] = strings.Repeat(fmt.Sprintf("Change %d\n", i), 1000)
		repo.Tag(tag, repo.Commit(gittest.Text(files)))
	}
	repo.Git("repack", "-a", "-d", "--quiet")
	return repo
}
