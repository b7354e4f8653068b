package source

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hello is a repository with a template in its root and one below.
func hello() gittest.Files {
	return gittest.Files{
		"main.tf":             gittest.File("# root\n"),
		"README.md":           gittest.File("hello\n"),
		"bin/run.sh":          gittest.Executable("#!/bin/sh\n"),
		"modules/net/main.tf": gittest.File("# net\n"),
		"modules/current":     gittest.Symlink("net"),
		"modules/readme.md":   gittest.Symlink("../README.md"),
		"docs/index.md":       gittest.File("docs\n"),
	}
}

// options allows everything that server serves.
func options(t *testing.T, server *gittest.Server) Options {
	t.Helper()
	return Options{
		Policy:   job.Policy{Repos: []string{server.URL + "/**"}},
		Git:      job.Git{CAFile: server.CAFile, Timeout: time.Minute},
		ReposDir: t.TempDir(),
	}
}

func newSource(t *testing.T, opts Options) *Source {
	t.Helper()
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// checkout resolves and checks out into a new directory.
func checkout(t *testing.T, s *Source, req Request) (Resolved, Tree) {
	t.Helper()
	resolved, err := s.Resolve(t.Context(), req)
	if err != nil {
		t.Fatalf("Resolve(%+v): %v", req, err)
	}
	tree, err := s.Checkout(t.Context(), req, resolved.Commit, filepath.Join(t.TempDir(), "src"))
	if err != nil {
		t.Fatalf("Checkout(%+v): %v", req, err)
	}
	return resolved, tree
}

// tryCheckout does the same and returns the first error.
func tryCheckout(ctx context.Context, t *testing.T, s *Source, req Request) error {
	t.Helper()
	resolved, err := s.Resolve(ctx, req)
	if err != nil {
		return err
	}
	_, err = s.Checkout(ctx, req, resolved.Commit, filepath.Join(t.TempDir(), "src"))
	return err
}

// wantFailure checks an error's code and that its message has all of parts.
func wantFailure(t *testing.T, err error, code provision.Code, parts ...string) {
	t.Helper()
	f, ok := errors.AsType[*provision.Failure](err)
	if !ok {
		t.Fatalf("error = %v, want a Failure with code %q", err, code)
	}
	if f.Code != code {
		t.Errorf("code of %q = %q, want %q", f.Message, f.Code, code)
	}
	for _, part := range parts {
		if !strings.Contains(f.Message, part) {
			t.Errorf("message = %q, want %q in it", f.Message, part)
		}
	}
}

func wantFile(t *testing.T, name, want string) {
	t.Helper()
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s = %q, want %q", name, got, want)
	}
}

// wantNowhere looks through the files below dir.
func wantNowhere(t *testing.T, dir string, secrets ...string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		files++
		content, err := os.ReadFile(path)
		for _, secret := range secrets {
			if strings.Contains(string(content), secret) {
				t.Errorf("%s holds %q", path, secret)
			}
		}
		return err
	})
	if err != nil || files == 0 {
		t.Fatalf("looked through %d files in %s: %v", files, dir, err)
	}
}

func wantRequests(t *testing.T, server *gittest.Server, refs, packs int) {
	t.Helper()
	if got := server.Requests(); got.Refs != refs || got.Packs != packs {
		t.Errorf("requests = %d listings and %d packs, want %d and %d", got.Refs, got.Packs, refs, packs)
	}
}

// peakHeap returns the most memory in use while f runs. No other test may run
// by then.
func peakHeap(t *testing.T, f func()) uint64 {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	live := func() uint64 {
		sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	runtime.GC()
	before, peak := live(), make(chan uint64)
	done := make(chan struct{})
	go func() {
		var highest uint64
		for {
			highest = max(highest, live())
			select {
			case <-done:
				peak <- highest
				return
			default:
				runtime.Gosched()
			}
		}
	}()
	f()
	close(done)
	return max(<-peak, before) - before
}

// noise is n bytes that do not compress, the same each time.
func noise(n int) string {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return string(b)
}
