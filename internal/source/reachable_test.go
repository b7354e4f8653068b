package source

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

// forkCommit is a commit that the server has, and hands out to all who name it,
// though no branch or tag leads to it: as where forks share their objects.
func forkCommit(t *testing.T, repo *gittest.Repo) string {
	t.Helper()
	repo.Git("config", "uploadpack.allowAnySHA1InWant", "true")
	commit := repo.CommitTo("fork", gittest.Text(map[string]string{"main.tf": "# a stranger's\n"}))
	repo.Git("update-ref", "refs/pull/7/head", commit)
	repo.Git("update-ref", "-d", "refs/heads/fork")
	return commit
}

func TestCommitsOfForksAreRefused(t *testing.T) {
	t.Parallel()
	for name, filter := range map[string]string{"commits alone": "true", "whole history": "false"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := gittest.NewServer(t)
			repo, first := server.Repo("acme/app", hello(), "")
			repo.Git("config", "uploadpack.allowFilter", filter)
			repo.Commit(gittest.Text(map[string]string{"main.tf": "# later\n"}))
			pulled := forkCommit(t, repo)
			tree := strings.TrimSpace(repo.Git("rev-parse", pulled+"^{tree}"))
			dangling := strings.TrimSpace(repo.Git("commit-tree", tree, "-m", "a stranger's"))
			opts := options(t, server)
			s := newSource(t, opts)
			for kind, commit := range map[string]string{"of a pull request": pulled, "of a fork": dangling} {
				err := tryCheckout(t.Context(), t, s, Request{Repo: repo.URL, Version: commit})
				if err == nil {
					t.Errorf("Checkout of a commit %s = nil, want it refused", kind)
					continue
				}
				wantFailure(t, err, provision.CodeVersionNotFound, commit, "no commit", "a branch or tag leads to", "deploy a tag")
			}
			_, checked := checkout(t, s, Request{Repo: repo.URL, Version: first})
			wantFile(t, checked.Dir+"/main.tf", "# root\n")

			// A known commit is asked for no more, by another process either.
			server.Reset()
			if _, err := newSource(t, opts).Resolve(t.Context(), Request{Repo: repo.URL, Version: first}); err != nil {
				t.Errorf("Resolve(a known commit) = %v, want nil", err)
			}
			wantRequests(t, server, 0, 0)
		})
	}
}

// That a tag's commit may run is written to the disk once, and not by each run.
func TestReachableTagIsWrittenOnce(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, _ := server.Repo("acme/app", hello(), "v1")
	opts := options(t, server)
	written := func() os.FileInfo {
		t.Helper()
		if _, err := newSource(t, opts).Resolve(t.Context(), Request{Repo: repo.URL, Version: "v1"}); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(opts.ReposDir, "*", "reachable", "*"))
		if err != nil || len(files) != 1 {
			t.Fatalf("files that remember commits = %q, %v, want one", files, err)
		}
		file, err := os.Open(files[0]) // open, its number is not used again
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = file.Close() })
		info, err := file.Stat()
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	first := written()
	if !os.SameFile(first, written()) {
		t.Error("the next run has written what was known")
	}
	opts.Policy.CommitRefs = []string{"refs/tags/**"}
	if os.SameFile(first, written()) {
		t.Error("it is not written for other references")
	}
}

func TestCommitRefs(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, tagged := server.Repo("acme/app", hello(), "v1")
	later := repo.Commit(gittest.Text(map[string]string{"main.tf": "# later\n"}))
	other := repo.CommitTo("other", gittest.Text(map[string]string{"main.tf": "# other\n"}))
	opts := options(t, server)
	for refs, admitted := range map[string]string{
		"":                           tagged + later + other,
		"refs/tags/**":               tagged,
		"refs/heads/main":            tagged + later,
		"refs/heads/o*":              other,
		"refs/heads/x refs/tags/v2*": "",
	} {
		opts.Policy.CommitRefs = strings.Fields(refs)
		s := newSource(t, opts) // with the same memory each time
		for _, commit := range []string{tagged, later, other} {
			_, err := s.Resolve(t.Context(), Request{Repo: repo.URL, Version: commit})
			if want := strings.Contains(admitted, commit); (err == nil) != want {
				t.Errorf("Resolve with commit_refs %q = %v, want it admitted: %t", refs, err, want)
			} else if err != nil {
				wantFailure(t, err, provision.CodeVersionNotFound, commit, "commit_refs", refs)
			}
		}
	}
	for _, bad := range []string{"main", "refs/pull/**", "refs/heads/", "refs/heads/a**", "refs/heads/[a]"} {
		opts.Policy.CommitRefs = []string{bad}
		if _, err := New(opts); err == nil || !strings.Contains(err.Error(), "commit_refs") {
			t.Errorf("New(commit_refs %q) = %v, want it refused", bad, err)
		}
	}
}

// What is fetched to find a commit are commits, without the files of a history.
func TestHistoryIsFetchedWithoutFiles(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, _ := server.Repo("acme/app", gittest.Text(map[string]string{"main.tf": "", "old.bin": noise(1 << 20)}), "")
	repo.Git("config", "uploadpack.allowFilter", "true")
	wanted := repo.Commit(hello())
	repo.Commit(gittest.Text(map[string]string{"main.tf": "# later\n"}))
	checkout(t, newSource(t, options(t, server)), Request{Repo: repo.URL, Version: wanted})
	if got := server.Requests().Bytes; got > 64<<10 {
		t.Errorf("packs = %d bytes, want commits and the files of one of them", got)
	}
}
