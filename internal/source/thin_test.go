package source

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

// versions is a repository with tags v1, v2 … of a large file that stays and one
// that grows by a line each, which git sends as a difference.
func versions(t *testing.T, newRepo func(string, gittest.Files, string) (*gittest.Repo, string), n int) *gittest.Repo {
	t.Helper()
	files := gittest.Text(map[string]string{"main.tf": "# v1\n", "big.bin": noise(1 << 20)})
	repo, commit := newRepo("acme/app", files, "")
	for i := 1; i <= n; i++ {
		if i > 1 {
			files["main.tf"] = gittest.File(fmt.Sprintf("# v%d\n", i))
			files["grows.txt"] = gittest.File(growing(i))
			commit = repo.Commit(files)
		}
		repo.AnnotatedTag(fmt.Sprintf("v%d", i), commit)
	}
	return repo
}

func growing(lines int) string {
	return noise(20_000) + "\n" + strings.Repeat("one more line\n", lines)
}

// checkMirror compares a checkout with its version of versions, and what is in
// the mirror by then with what git thinks of it.
func checkMirror(t *testing.T, s *Source, repo *gittest.Repo, tree Tree, i int) {
	t.Helper()
	wantFile(t, filepath.Join(tree.Dir, "main.tf"), fmt.Sprintf("# v%d\n", i))
	wantFile(t, filepath.Join(tree.Dir, "big.bin"), noise(1<<20))
	if i > 1 {
		wantFile(t, filepath.Join(tree.Dir, "grows.txt"), growing(i))
	}
	for _, index := range glob(t, mirrorOf(t, s, repo.URL), "*.idx") {
		if out, err := exec.CommandContext(t.Context(), "git", "verify-pack", index).CombinedOutput(); err != nil {
			t.Errorf("git verify-pack: %v: %s", err, out)
		}
	}
}

func TestNextVersionCostsItsDifference(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo := versions(t, server.Repo, 4)
	s := newSource(t, options(t, server))
	for i := 1; i <= 4; i++ {
		server.Reset()
		_, tree := checkout(t, s, Request{Repo: repo.URL, Version: fmt.Sprintf("v%d", i)})
		checkMirror(t, s, repo, tree, i)
		if got := server.Requests(); i > 2 && got.Bytes > 2_000 || i == 2 && got.Bytes > 40_000 || got.Packs != 1 {
			t.Errorf("v%d: %d bytes in %d packs, want no more than what is new", i, got.Bytes, got.Packs)
		}
	}
	// Nor an earlier one, by its commit.
	server.Reset()
	_, tree := checkout(t, s, Request{Repo: repo.URL, Version: repo.Git("rev-parse", "v1^{commit}")})
	checkMirror(t, s, repo, tree, 1)
	wantRequests(t, server, 0, 0)
}

func TestNextVersionOverSSH(t *testing.T) {
	t.Parallel()
	host := gittest.NewSSHServer(t)
	repo := versions(t, host.Repo, 3)
	s := sshSource(t, host)
	for i := 1; i <= 3; i++ {
		_, tree := checkout(t, s, Request{Repo: repo.URL, Version: fmt.Sprintf("v%d", i)})
		checkMirror(t, s, repo, tree, i)
	}
}

// The history that a commit without a name was fetched with is told of as if it
// were not there, which must not matter.
func TestNextVersionAfterAllOfTheHistory(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo := versions(t, server.Repo, 2)
	s := newSource(t, options(t, server))
	first := repo.Git("rev-parse", "v1^{commit}")
	repo.Git("tag", "--delete", "v1")
	server.OnlyWhole()
	_, tree := checkout(t, s, Request{Repo: repo.URL, Version: first})
	checkMirror(t, s, repo, tree, 1)
	server.Override(nil)
	repo.Tag("v3", repo.Commit(gittest.Text(map[string]string{"main.tf": "# v3\n", "big.bin": noise(1 << 20), "grows.txt": growing(3)})))
	server.Reset()
	_, tree = checkout(t, s, Request{Repo: repo.URL, Version: "v3"})
	checkMirror(t, s, repo, tree, 3)
	if got := server.Requests().Bytes; got > 40_000 {
		t.Errorf("v3 = %d bytes, want no more than what is new", got)
	}
}

// A base in memory must not be as large as a file may be. A server is then asked
// for all of it: TestNextVersionOfALargeFile in e2e/chaos.
func TestReceiveRefusesDifferencesToWhatIsLarge(t *testing.T) {
	t.Parallel()
	m := emptyMirror(t)
	large := strings.Repeat("x", maxThinBase+1)
	if err := m.receive(bytes.NewReader(blobPack(t, large))); err != nil {
		t.Fatal(err)
	}
	if err := m.receive(bytes.NewReader(thinPackOf(len(large), blob(large)))); !errors.Is(err, errTooLarge) || isCorrupt(err) {
		t.Errorf("receive of a difference to %d bytes = %v, want %v", len(large), err, errTooLarge)
	}
	if names := packFiles(t, m); len(names) != 2 {
		t.Errorf("files = %q, want the pack and the index that were there", names)
	}
}

// thinPack has a difference to each of the objects of 100 bytes: one that copies
// its first byte.
func thinPack(bases ...plumbing.Hash) []byte { return thinPackOf(100, bases...) }

func thinPackOf(size int, bases ...plumbing.Hash) []byte {
	var body []byte
	for _, id := range bases {
		var packed bytes.Buffer
		w := zlib.NewWriter(&packed)
		// The base's size, ours, and: copy 1 byte from 0.
		difference := append(binary.AppendUvarint(nil, uint64(size)), 1, 0x90, 1)
		_, _ = w.Write(difference)
		_ = w.Close()
		body = append(body, byte(plumbing.REFDeltaObject)<<4|byte(len(difference)))
		body = append(append(body, id[:]...), packed.Bytes()...)
	}
	return seal(uint32(len(bases)), body)
}

func TestReceiveCompletesAThinPack(t *testing.T) {
	t.Parallel()
	m := emptyMirror(t)
	if err := m.receive(bytes.NewReader(blobPack(t, strings.Repeat("x", 100), strings.Repeat("y", 100)))); err != nil {
		t.Fatal(err)
	}
	x, y := blob(strings.Repeat("x", 100)), blob(strings.Repeat("y", 100))
	if err := m.receive(bytes.NewReader(thinPack(x, y))); err != nil {
		t.Fatal(err)
	}
	have, err := m.objects()
	if err != nil {
		t.Fatal(err)
	}
	defer have.close()
	for _, content := range []string{"x", "y"} {
		var got bytes.Buffer
		if _, err := have.copy(&got, plumbing.BlobObject, blob(content), 10); err != nil || got.String() != content {
			t.Errorf("the object is %q, %v, want %q", got.String(), err, content)
		}
	}
	for _, index := range glob(t, m, "*.idx") {
		if out, err := exec.CommandContext(t.Context(), "git", "verify-pack", index).CombinedOutput(); err != nil {
			t.Errorf("git verify-pack: %v: %s", err, out)
		}
	}
}

func blob(content string) plumbing.Hash {
	return plumbing.ComputeHash(plumbing.BlobObject, []byte(content))
}

// blobPack is a pack of whole blobs.
func blobPack(t testing.TB, contents ...string) []byte {
	t.Helper()
	var body bytes.Buffer
	for _, content := range contents {
		body.Write(objectHeader(plumbing.BlobObject, len(content)))
		w := zlib.NewWriter(&body)
		_, _ = io.WriteString(w, content)
		_ = w.Close()
	}
	return seal(uint32(len(contents)), body.Bytes())
}
