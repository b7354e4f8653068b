package source

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/caches"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

// items lists the mirrors of a Source, and the one of a repository.
func items(t *testing.T, s *Source, url string) (caches.Item, bool) {
	t.Helper()
	all, err := Mirrors{s.repos}.Items()
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range all {
		if item.Path == mirrorOf(t, s, url).git() {
			return item, true
		}
	}
	return caches.Item{}, false
}

func TestRemovedMirrorIsFetchedAgain(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, _ := server.Repo("acme/app", hello(), "v1.0.0")
	other, _ := server.Repo("acme/other", hello(), "v1.0.0")
	s := newSource(t, options(t, server))
	req := Request{Repo: repo.URL, Version: "v1.0.0"}
	first, _ := checkout(t, s, req)
	checkout(t, s, Request{Repo: other.URL, Version: "v1.0.0"})
	item, found := items(t, s, repo.URL)
	if !found {
		t.Fatal("Items() lacks a mirror that was just used")
	}
	if removed, err := (Mirrors{s.repos}).Remove(t.Context(), item); !removed || err != nil {
		t.Fatalf("Remove() = %v, %v, want it removed", removed, err)
	}
	if _, found := items(t, s, repo.URL); found {
		t.Error("Items() still has the mirror")
	}
	if _, found := items(t, s, other.URL); !found {
		t.Error("Items() lacks the other mirror")
	}
	if size, err := caches.Size(t.Context(), mirrorOf(t, s, repo.URL).dir); err != nil || size > 64<<10 {
		t.Errorf("what is left of it takes %d bytes, %v, want next to nothing", size, err)
	}
	server.Reset()
	resolved, tree := checkout(t, s, req)
	wantFile(t, filepath.Join(tree.Dir, "main.tf"), "# root\n")
	if got := server.Requests().Packs; got != 1 || resolved.Commit != first.Commit {
		t.Errorf("asked for %d packs and got %s, want one, and %s", got, resolved.Commit, first.Commit)
	}
	// A tag that moves is still noticed.
	repo.Commit(gittest.Text(map[string]string{"main.tf": "# moved\n"}))
	repo.Git("tag", "-f", "v1.0.0")
	item, _ = items(t, s, repo.URL)
	if removed, err := (Mirrors{s.repos}).Remove(t.Context(), item); !removed || err != nil {
		t.Fatalf("Remove() = %v, %v, want it removed", removed, err)
	}
	if _, err := s.Resolve(t.Context(), req); err == nil {
		t.Error("Resolve(a tag that moved) = nil after its mirror was removed, want it refused")
	}
}

func TestMirrorInUseIsNotRemoved(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, _ := server.Repo("acme/app", hello(), "v1.0.0")
	s := newSource(t, options(t, server))
	checkout(t, s, Request{Repo: repo.URL, Version: "v1.0.0"})
	m := mirrorOf(t, s, repo.URL)
	item, _ := items(t, s, repo.URL)
	for name, mode := range map[string]lockMode{useLock: shared, fetchLock: exclusive} {
		unlock, err := m.lock(t.Context(), name, mode)
		if err != nil {
			t.Fatal(err)
		}
		if removed, err := (Mirrors{s.repos}).Remove(t.Context(), item); removed || err != nil {
			t.Errorf("Remove() = %v, %v while somebody has %s, want it to stay", removed, err, name)
		}
		unlock()
	}
	if _, err := os.Stat(filepath.Join(m.git(), "HEAD")); err != nil {
		t.Errorf("the mirror is gone: %v", err)
	}
}

// A mirror may go between the fetch and the checkout of one run.
func TestMirrorThatGoesBeforeItsCheckout(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, _ := server.Repo("acme/app", hello(), "v1.0.0")
	s := newSource(t, options(t, server))
	req := Request{Repo: repo.URL, Version: "v1.0.0"}
	resolved, _ := checkout(t, s, req)
	item, _ := items(t, s, repo.URL)
	id, _ := asCommit(resolved.Commit)
	m := mirrorOf(t, s, repo.URL)
	if removed, err := (Mirrors{s.repos}).Remove(t.Context(), item); !removed || err != nil {
		t.Fatalf("Remove() = %v, %v, want it removed", removed, err)
	}
	// What it looks like to a run that has just found the commit complete.
	if err := errors.Join(os.MkdirAll(m.marks(), 0o700), m.markComplete(id)); err != nil {
		t.Fatal(err)
	}
	_, tree := checkout(t, s, req)
	wantFile(t, filepath.Join(tree.Dir, "main.tf"), "# root\n")
}

func TestMirrorsAreUsedByCheckouts(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, _ := server.Repo("acme/app", hello(), "v1.0.0")
	s := newSource(t, options(t, server))
	req := Request{Repo: repo.URL, Version: "v1.0.0"}
	checkout(t, s, req)
	long := time.Now().Add(-100 * time.Hour)
	m := mirrorOf(t, s, repo.URL)
	for _, path := range []string{m.git(), filepath.Join(m.dir, useLock)} {
		if err := os.Chtimes(path, long, long); err != nil {
			t.Fatal(err)
		}
	}
	if item, _ := items(t, s, repo.URL); time.Since(item.Used) < 99*time.Hour {
		t.Errorf("Used = %s ago, want 100 hours", time.Since(item.Used))
	}
	checkout(t, s, req) // without a fetch
	if item, _ := items(t, s, repo.URL); time.Since(item.Used) > time.Hour {
		t.Errorf("Used = %s ago after a checkout, want just now", time.Since(item.Used))
	}
}

// What is in the directory may be a template's, where agent and templates share a
// uid.
func TestMirrorsThatAreNone(t *testing.T) {
	t.Parallel()
	repos, outside := t.TempDir(), t.TempDir()
	kept := filepath.Join(outside, "kept")
	at := func(names ...string) string { return filepath.Join(append([]string{repos}, names...)...) }
	err := errors.Join(
		os.WriteFile(kept, nil, 0o600),
		os.Mkdir(at("a"), 0o700), os.Symlink(outside, at("a", "git")),
		os.Mkdir(at("b"), 0o700), os.Mkdir(at("b", "git"), 0o700), unix.Mkfifo(at("b", useLock), 0o600),
		os.Symlink(outside, at("c")), os.Mkdir(filepath.Join(outside, "git"), 0o700), os.Mkdir(filepath.Join(outside, removedPrefix+"3"), 0o700), os.WriteFile(at("d"), nil, 0o600),
		os.Mkdir(at("e"), 0o700), os.Symlink(outside, at("e", removedPrefix+"1")), os.MkdirAll(at("e", removedPrefix+"2", "x"), 0o700))
	if err != nil {
		t.Fatal(err)
	}
	all, err := Mirrors{repos}.Items()
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range all {
		_, err := Mirrors{repos}.Remove(t.Context(), item)
		if (err != nil) != (item.Path == at("b", "git")) {
			t.Errorf("Remove(%s) error = %v", item.Path, err)
		}
	}
	if err := (Mirrors{repos}).Sweep(t.Context()); err != nil {
		t.Errorf("Sweep() = %v", err)
	}
	for _, path := range []string{kept, filepath.Join(outside, "git"), filepath.Join(outside, removedPrefix+"3")} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("what a link leads to is gone: %v", err)
		}
	}
	for _, path := range []string{at("a", "git"), at("e", removedPrefix+"1"), at("e", removedPrefix+"2")} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
}

func TestNoMirrorsYet(t *testing.T) {
	t.Parallel()
	nowhere := Mirrors{filepath.Join(t.TempDir(), "nowhere")}
	if all, err := nowhere.Items(); len(all) > 0 || err != nil {
		t.Errorf("Items() = %v, %v, want none", all, err)
	}
	if err := nowhere.Sweep(t.Context()); err != nil {
		t.Errorf("Sweep() = %v", err)
	}
}
