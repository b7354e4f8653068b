package source

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

func TestCheckoutOfATag(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, commit := server.Repo("acme/app", hello(), "v1.0.0")
	repo.AnnotatedTag("v1.0.0-signed", commit)
	repo.Commit(gittest.Text(map[string]string{"main.tf": "# later\n"}))
	for _, version := range []string{"v1.0.0", "v1.0.0-signed"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			s := newSource(t, options(t, server))
			resolved, tree := checkout(t, s, Request{Repo: repo.URL, Version: version})
			if resolved.Commit != commit {
				t.Errorf("Resolve = %s, want %s", resolved.Commit, commit)
			}
			if resolved.Notice != "" || tree.Notice != "" {
				t.Errorf("notices = %q and %q, want none", resolved.Notice, tree.Notice)
			}
			wantFile(t, filepath.Join(tree.Dir, "main.tf"), "# root\n")
			wantFile(t, filepath.Join(tree.Dir, "modules/current/main.tf"), "# net\n")
			if target, err := os.Readlink(filepath.Join(tree.Dir, "modules/readme.md")); target != "../README.md" {
				t.Errorf("link = %q, %v, want it kept", target, err)
			}
			info, err := os.Stat(filepath.Join(tree.Dir, "bin/run.sh"))
			if err != nil || info.Mode()&0o100 == 0 {
				t.Errorf("mode of bin/run.sh = %v, %v, want it executable", info.Mode(), err)
			}
			if info, err := os.Stat(filepath.Join(tree.Dir, "main.tf")); err != nil || info.Mode()&0o111 != 0 {
				t.Errorf("mode of main.tf = %v, %v, want it not executable", info.Mode(), err)
			}
			if _, err := os.Lstat(filepath.Join(tree.Dir, ".git")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a .git in the work tree: %v, want none", err)
			}
		})
	}
}

func TestCheckoutCostsNoMoreThanItMust(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, commit := server.Repo("acme/app", hello(), "v1.0.0")
	opts := options(t, server)
	s := newSource(t, opts)

	checkout(t, s, Request{Repo: repo.URL, Version: "v1.0.0"})
	wantRequests(t, server, 2, 1)

	server.Reset()
	checkout(t, s, Request{Repo: repo.URL, Version: "v1.0.0", PinnedCommit: commit})
	wantRequests(t, server, 1, 0)

	server.Reset()
	checkout(t, s, Request{Repo: repo.URL, Version: strings.ToUpper(commit)})
	wantRequests(t, server, 0, 0)

	// Another process finds the same mirror, by another spelling of the URL.
	server.Reset()
	other := newSource(t, opts)
	checkout(t, other, Request{Repo: strings.TrimSuffix(repo.URL, ".git"), Version: commit})
	wantRequests(t, server, 0, 0)
}

func TestHistoryIsNotFetched(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, _ := server.Repo("acme/app", gittest.Text(map[string]string{"main.tf": "", "old.bin": noise(1 << 20)}), "")
	repo.Tag("v2.0.0", repo.Commit(hello()))
	checkout(t, newSource(t, options(t, server)), Request{Repo: repo.URL, Version: "v2.0.0"})
	if got := server.Requests().Bytes; got > 64<<10 {
		t.Errorf("pack = %d bytes, want the tagged commit alone", got)
	}
}

func TestCheckoutOfACommit(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, first := server.Repo("acme/app", hello(), "")
	repo.Commit(gittest.Text(map[string]string{"main.tf": "# later\n"}))
	// Reachable from a branch, named by none.
	_, tree := checkout(t, newSource(t, options(t, server)), Request{Repo: repo.URL, Version: first})
	wantFile(t, filepath.Join(tree.Dir, "main.tf"), "# root\n")
}

// A server that hands out only what its references name makes go-git (and
// git) refuse; then the branches are fetched and the commit is found in them.
func TestCheckoutOfACommitThatTheServerWillNotName(t *testing.T) {
	t.Parallel()
	host := gittest.NewSSHServer(t)
	repo, first := host.Repo("acme/app", hello(), "")
	repo.Commit(gittest.Text(map[string]string{"main.tf": "# later\n"}))
	s := sshSource(t, host)
	_, tree := checkout(t, s, Request{Repo: repo.URL, Version: first})
	wantFile(t, filepath.Join(tree.Dir, "main.tf"), "# root\n")
	if got := host.Sessions(); got != 3 {
		t.Errorf("sessions = %d, want one for the history, one refused and one for everything", got)
	}
}

func TestUnknownCommit(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, _ := server.Repo("acme/app", hello(), "")
	err := tryCheckout(t.Context(), t, newSource(t, options(t, server)),
		Request{Repo: repo.URL, Version: strings.Repeat("ab", 20)})
	wantFailure(t, err, provision.CodeVersionNotFound, strings.Repeat("ab", 20), "no commit")
}

func TestUnknownTag(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, commit := server.Repo("acme/app", hello(), "v1.2.0")
	repo.Tag("v1.10.0", commit)
	bare, _ := server.Repo("acme/untagged", hello(), "")
	empty := gittest.Files{}
	void, _ := server.Repo("acme/void", empty, "")
	void.Git("update-ref", "-d", "refs/heads/main")
	s := newSource(t, options(t, server))
	tests := map[string]struct {
		repo, version string
		parts         []string
	}{
		"near":     {repo.URL, "1.2.0", []string{`no tag "1.2.0"`, "did you mean v1.2.0"}},
		"far":      {repo.URL, "production-candidate", []string{"no tag"}},
		"branch":   {repo.URL, "main", []string{"a branch has that name", "branches are not accepted"}},
		"short":    {repo.URL, commit[:12], []string{"all 40 digits"}},
		"untagged": {bare.URL, "v1.0.0", []string{"no tags at all"}},
		"empty":    {void.URL, "v1.0.0", []string{"no tags at all"}},
		"HEAD":     {repo.URL, "HEAD", []string{"no tag"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := s.Resolve(t.Context(), Request{Repo: tt.repo, Version: tt.version})
			wantFailure(t, err, provision.CodeVersionNotFound, tt.parts...)
		})
	}
}

func TestBadVersionAndPathCostNoNetwork(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, _ := server.Repo("acme/app", hello(), "v1.0.0")
	s := newSource(t, options(t, server))
	_, err := s.Resolve(t.Context(), Request{Repo: repo.URL, Version: "--upload-pack=id"})
	wantFailure(t, err, provision.CodeBadSnapshot, "template_source.version")
	_, err = s.Resolve(t.Context(), Request{Repo: repo.URL, Version: "v1.0.0", Path: "../x"})
	wantFailure(t, err, provision.CodePathRefused, "template_source.path")
	_, err = s.Resolve(t.Context(), Request{Repo: server.URL + ".evil.com/acme/app", Version: "v1.0.0"})
	wantFailure(t, err, provision.CodeRepoRefused, "[policy] repos")
	_, err = s.Checkout(t.Context(), Request{Repo: "https://evil.com/acme/app"}, strings.Repeat("ab", 20), t.TempDir())
	wantFailure(t, err, provision.CodeRepoRefused, "[policy] repos")
	wantRequests(t, server, 0, 0)
}

func TestMovedTag(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, was := server.Repo("acme/app", hello(), "v1.0.0")
	s := newSource(t, options(t, server))
	checkout(t, s, Request{Repo: repo.URL, Version: "v1.0.0"})
	is := repo.Commit(gittest.Text(map[string]string{"main.tf": "# moved\n"}))
	repo.Tag("v1.0.0", is)

	_, err := s.Resolve(t.Context(), Request{Repo: repo.URL, Version: "v1.0.0", PinnedCommit: was})
	wantFailure(t, err, provision.CodeTagMoved, was, is, "new tag")

	// The database forgot; this agent did not, not even without its mirror.
	if err := os.RemoveAll(mirrorOf(t, s, repo.URL).git()); err != nil {
		t.Fatal(err)
	}
	_, err = s.Resolve(t.Context(), Request{Repo: repo.URL, Version: "v1.0.0"})
	wantFailure(t, err, provision.CodeTagMoved, was, is, "tags.json")

	// An agent that never saw it relies on the database.
	fresh := newSource(t, options(t, server))
	_, err = fresh.Resolve(t.Context(), Request{Repo: repo.URL, Version: "v1.0.0", PinnedCommit: was})
	wantFailure(t, err, provision.CodeTagMoved, was, is)

	// What was pinned can still be run by its commit.
	_, tree := checkout(t, s, Request{Repo: repo.URL, Version: was})
	wantFile(t, filepath.Join(tree.Dir, "main.tf"), "# root\n")
}

func TestServerGone(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, commit := server.Repo("acme/app", hello(), "v1.0.0")
	s := newSource(t, options(t, server))
	checkout(t, s, Request{Repo: repo.URL, Version: "v1.0.0"})
	pinned := Request{Repo: repo.URL, Version: "v1.0.0", PinnedCommit: commit}

	for name, code := range map[string]int{"unauthorised": 401, "forbidden": 403, "not found": 404} {
		server.Override(gittest.Status(code))
		if _, err := s.Resolve(t.Context(), pinned); err == nil {
			t.Errorf("Resolve while %s = nil error, want the answer to be respected", name)
		}
	}
	server.Close()
	resolved, tree := checkout(t, s, pinned)
	if resolved.Commit != commit || !strings.Contains(resolved.Notice, "cache") || !strings.Contains(resolved.Notice, commit) {
		t.Errorf("Resolve = %+v, want the pinned commit and a notice", resolved)
	}
	wantFile(t, filepath.Join(tree.Dir, "main.tf"), "# root\n")

	_, err := s.Resolve(t.Context(), Request{Repo: repo.URL, Version: "v1.0.0"})
	wantFailure(t, err, provision.CodeCheckoutFailed, "cannot reach the server")
	_, err = s.Resolve(t.Context(), Request{Repo: repo.URL, Version: "v1.0.0", PinnedCommit: strings.Repeat("ab", 20)})
	wantFailure(t, err, provision.CodeCheckoutFailed, "cannot reach the server")
	_, err = newSource(t, options(t, server)).Resolve(t.Context(), pinned)
	wantFailure(t, err, provision.CodeCheckoutFailed, "cannot reach the server")
}

func TestConcurrentCheckouts(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, commit := server.Repo("acme/app", hello(), "v1.0.0")
	opts := options(t, server)
	var wg sync.WaitGroup
	for range 8 {
		s := newSource(t, opts) // as in processes of their own
		dir := filepath.Join(t.TempDir(), "src")
		wg.Go(func() {
			req := Request{Repo: repo.URL, Version: "v1.0.0"}
			if _, err := s.Resolve(t.Context(), req); err != nil {
				t.Error(err)
				return
			}
			tree, err := s.Checkout(t.Context(), req, commit, dir)
			if err != nil {
				t.Error(err)
				return
			}
			if got, err := os.ReadFile(filepath.Join(tree.Dir, "main.tf")); string(got) != "# root\n" {
				t.Errorf("main.tf = %q, %v, want the commit's", got, err)
			}
		})
	}
	wg.Wait()
	if got := server.Requests().Packs; got != 1 {
		t.Errorf("packs fetched = %d, want 1 for all", got)
	}
}

func TestFileRepository(t *testing.T) {
	t.Parallel()
	repo := gittest.NewRepo(t)
	first := repo.Commit(hello())
	repo.AnnotatedTag("v1.0.0", first)
	repo.Commit(gittest.Text(map[string]string{"main.tf": "# later\n"}))
	opts := Options{
		Policy:   job.Policy{Repos: []string{"file://" + filepath.Dir(repo.Dir) + "/*"}, AllowFile: true},
		ReposDir: t.TempDir(),
	}
	s := newSource(t, opts)
	for _, version := range []string{"v1.0.0", first} {
		resolved, tree := checkout(t, s, Request{Repo: repo.FileURL(), Version: version, Path: "modules/net"})
		if resolved.Commit != first {
			t.Errorf("Resolve(%s) = %s, want %s", version, resolved.Commit, first)
		}
		wantFile(t, filepath.Join(tree.Dir, "main.tf"), "# net\n")
	}
	// A second commit into the same mirror.
	repo.Tag("v2.0.0", "main")
	_, tree := checkout(t, s, Request{Repo: repo.FileURL(), Version: "v2.0.0"})
	wantFile(t, filepath.Join(tree.Dir, "main.tf"), "# later\n")

	_, err := s.Resolve(t.Context(), Request{Repo: repo.FileURL() + "x", Version: "v1.0.0"})
	wantFailure(t, err, provision.CodeCheckoutFailed, "not found")
	opts.Policy.AllowFile = false
	_, err = newSource(t, opts).Resolve(t.Context(), Request{Repo: repo.FileURL(), Version: "v1.0.0"})
	wantFailure(t, err, provision.CodeRepoRefused, "allow_file", repo.Dir)
}

func TestCancelWhileListing(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, _ := server.Repo("acme/app", hello(), "v1.0.0")
	started := make(chan struct{})
	server.Override(gittest.Hang(started))
	s := newSource(t, options(t, server))
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("a person cancelled it")
	go func() {
		<-started
		cancel(stop)
	}()
	if _, err := s.Resolve(ctx, Request{Repo: repo.URL, Version: "v1.0.0"}); !errors.Is(err, stop) {
		t.Errorf("Resolve = %v, want the cause %v", err, stop)
	}
}

func TestCancelMidFetch(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	files := hello()
	files["big.bin"] = gittest.File(noise(1 << 20))
	repo, commit := server.Repo("acme/app", files, "v1.0.0")
	s := newSource(t, options(t, server))
	started := make(chan struct{})
	server.HangPack(100<<10, started)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-started
		cancel()
	}()
	req := Request{Repo: repo.URL, Version: "v1.0.0"}
	if _, err := s.Checkout(ctx, req, commit, t.TempDir()); !errors.Is(err, context.Canceled) {
		t.Fatalf("Checkout = %v, want %v", err, context.Canceled)
	}
	m := mirrorOf(t, s, repo.URL)
	if left, err := filepath.Glob(filepath.Join(m.packs(), "*")); len(left) > 0 || err != nil {
		t.Errorf("left in the mirror: %q, %v, want nothing", left, err)
	}
	server.Override(nil)
	_, tree := checkout(t, s, req)
	wantFile(t, filepath.Join(tree.Dir, "big.bin"), files.Content("big.bin"))
}

func TestCancelWhileWaitingForASiblingsFetch(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, commit := server.Repo("acme/app", hello(), "v1.0.0")
	s := newSource(t, options(t, server))
	unlock, err := mirrorOf(t, s, repo.URL).lock(t.Context(), fetchLock, exclusive)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Checkout(ctx, Request{Repo: repo.URL, Version: "v1.0.0"}, commit, t.TempDir())
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Checkout = %v, want %v", err, context.Canceled)
	}
}

func mirrorOf(t *testing.T, s *Source, repo string) mirror {
	t.Helper()
	a, err := parseAddress(repo)
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.mirror(a)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
