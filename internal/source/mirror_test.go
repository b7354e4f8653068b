package source

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"

	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

// A mirror may be damaged in any way between two runs.
func TestDamagedMirrorIsFetchedAnew(t *testing.T) {
	t.Parallel()
	damages := map[string]func(t *testing.T, m mirror){
		"pack is garbage":       func(t *testing.T, m mirror) { rewrite(t, m, "*.pack", garble) },
		"pack is cut":           func(t *testing.T, m mirror) { rewrite(t, m, "*.pack", half) },
		"pack is empty":         func(t *testing.T, m mirror) { rewrite(t, m, "*.pack", nothing) },
		"pack is gone":          func(t *testing.T, m mirror) { drop(t, m, "*.pack") },
		"index is garbage":      func(t *testing.T, m mirror) { rewrite(t, m, "*.idx", garble) },
		"index is cut":          func(t *testing.T, m mirror) { rewrite(t, m, "*.idx", half) },
		"index is empty":        func(t *testing.T, m mirror) { rewrite(t, m, "*.idx", nothing) },
		"index is gone":         func(t *testing.T, m mirror) { drop(t, m, "*.idx") },
		"everything but a mark": func(t *testing.T, m mirror) { drop(t, m, "*") },
	}
	server := gittest.NewServer(t)
	files := hello()
	files["big.bin"] = gittest.File(noise(64 << 10))
	repo, _ := server.Repo("acme/app", files, "v1.0.0")
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSource(t, options(t, server))
			req := Request{Repo: repo.URL, Version: "v1.0.0"}
			checkout(t, s, req)
			damage(t, mirrorOf(t, s, repo.URL))
			_, tree := checkout(t, s, req)
			wantFile(t, filepath.Join(tree.Dir, "main.tf"), "# root\n")
			wantFile(t, filepath.Join(tree.Dir, "big.bin"), files.Content("big.bin"))
		})
	}
}

// A pack whose objects are sound but whose index calls one by another's id is
// noticed by nothing but the id of the content.
func TestContentIsComparedWithItsID(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, _ := server.Repo("acme/app", gittest.Text(map[string]string{"main.tf": "# good\n", "evil.txt": "# evil\n"}), "v1.0.0")
	s := newSource(t, options(t, server))
	req := Request{Repo: repo.URL, Version: "v1.0.0"}
	checkout(t, s, req)
	good, evil := hashOf(t, repo, "main.tf"), hashOf(t, repo, "evil.txt")
	rewrite(t, mirrorOf(t, s, repo.URL), "*.idx", func(index []byte) []byte { return swapOffsets(t, index, good, evil) })

	_, tree := checkout(t, s, req)
	wantFile(t, filepath.Join(tree.Dir, "main.tf"), "# good\n")
	if got := server.Requests().Packs; got != 2 {
		t.Errorf("packs fetched = %d, want the second to replace the false one", got)
	}
}

func hashOf(t *testing.T, repo *gittest.Repo, path string) plumbing.Hash {
	t.Helper()
	return plumbing.NewHash(repo.Git("rev-parse", "main:"+path))
}

// swapOffsets exchanges where two objects of a pack are said to lie.
func swapOffsets(t *testing.T, content []byte, a, b plumbing.Hash) []byte {
	t.Helper()
	index := idxfile.NewMemoryIndex()
	if err := idxfile.NewDecoder(bytes.NewReader(content)).Decode(index); err != nil {
		t.Fatal(err)
	}
	changed := new(idxfile.Writer)
	if err := changed.OnHeader(uint32(len(content))); err != nil {
		t.Fatal(err)
	}
	entries, err := index.Entries()
	if err != nil {
		t.Fatal(err)
	}
	for entry, err := entries.Next(); err == nil; entry, err = entries.Next() {
		hash := entry.Hash
		switch hash {
		case a:
			hash = b
		case b:
			hash = a
		}
		changed.Add(hash, entry.Offset, entry.CRC32)
	}
	if err := changed.OnFooter(index.PackfileChecksum); err != nil {
		t.Fatal(err)
	}
	swapped, err := changed.Index()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := idxfile.NewEncoder(&out).Encode(swapped); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestInterruptedFetchIsSweptAway(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, commit := server.Repo("acme/app", hello(), "v1.0.0")
	s := newSource(t, options(t, server))
	m := mirrorOf(t, s, repo.URL)
	if err := m.prepare(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	left := []string{"tmp_pack_1", "tmp_2", durable.TempPrefix + "3", "pack-" + commit + ".idx"}
	for _, name := range left {
		if err := os.WriteFile(filepath.Join(m.packs(), name), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	checkout(t, s, Request{Repo: repo.URL, Version: "v1.0.0"})
	for _, name := range left {
		if _, err := os.Stat(filepath.Join(m.packs(), name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v, want it gone", name, err)
		}
	}
}

func TestConnectionCutMidPack(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	files := hello()
	files["big.bin"] = gittest.File(noise(1 << 20))
	repo, commit := server.Repo("acme/app", files, "v1.0.0")
	s := newSource(t, options(t, server))
	req := Request{Repo: repo.URL, Version: "v1.0.0"}
	for _, n := range []int{0, 20, 100, 500 << 10} {
		server.CutPack(n)
		_, err := s.Checkout(t.Context(), req, commit, t.TempDir())
		wantFailure(t, err, provision.CodeCheckoutFailed, repo.URL[:len(repo.URL)-len(".git")])
	}
	server.Override(nil)
	_, tree := checkout(t, s, req)
	wantFile(t, filepath.Join(tree.Dir, "big.bin"), files.Content("big.bin"))
}

func TestMirrorIsBegunAnewBeforeItGrowsTooLarge(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, _ := server.Repo("acme/app", hello(), "v1.0.0")
	s := newSource(t, options(t, server))
	m := mirrorOf(t, s, repo.URL)
	s.limits.packs = 3
	for i := range 8 {
		commit := repo.Commit(gittest.Text(map[string]string{"main.tf": fmt.Sprint(i)}))
		tag := fmt.Sprintf("v2.%d.0", i)
		repo.Tag(tag, commit)
		_, tree := checkout(t, s, Request{Repo: repo.URL, Version: tag})
		wantFile(t, filepath.Join(tree.Dir, "main.tf"), fmt.Sprint(i))
		packs, err := filepath.Glob(filepath.Join(m.packs(), "*.pack"))
		if err != nil || len(packs) > 3 {
			t.Fatalf("packs = %d, %v, want no more than %d", len(packs), err, 3)
		}
	}
	if first, err := m.remembered("v2.0.0"); first == "" || err != nil {
		t.Errorf("remembered(v2.0.0) = %q, %v, want it kept", first, err)
	}
}

func TestDamagedTagMemoryIsNotForgotten(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, _ := server.Repo("acme/app", hello(), "v1.0.0")
	s := newSource(t, options(t, server))
	m := mirrorOf(t, s, repo.URL)
	if err := os.WriteFile(m.tagsFile(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Resolve(t.Context(), Request{Repo: repo.URL, Version: "v1.0.0"}); err == nil {
		t.Error("Resolve = nil error, want the damage reported")
	}
}

func rewrite(t *testing.T, m mirror, pattern string, change func([]byte) []byte) {
	t.Helper()
	for _, name := range glob(t, m, pattern) {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, change(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func drop(t *testing.T, m mirror, pattern string) {
	t.Helper()
	for _, name := range glob(t, m, pattern) {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

func glob(t *testing.T, m mirror, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(m.packs(), pattern))
	if err != nil || len(names) == 0 {
		t.Fatalf("files like %s = %q, %v, want some", pattern, names, err)
	}
	return names
}

func garble(content []byte) []byte {
	middle := content[len(content)/4:]
	copy(middle, bytes.Repeat([]byte{0xa5}, len(middle)/2))
	return content
}

func half(content []byte) []byte { return content[:len(content)/2] }

func nothing([]byte) []byte { return nil }

// Objects of every size, whole and as differences to each other, in order and
// out of order, come out as they went in.
func TestObjectsOfEverySize(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	files := gittest.Text(map[string]string{"main.tf": "# root\n"})
	for _, size := range []int{10 << 10, 100 << 10, 1 << 20, 5 << 20} {
		content := noise(size)
		half := len(content) / 2
		files[fmt.Sprintf("%d/a", size)] = gittest.File(content)
		files[fmt.Sprintf("%d/b", size)] = gittest.File(content + "and more\n")
		files[fmt.Sprintf("%d/c", size)] = gittest.File(content[half:] + content[:half])
	}
	repo, _ := server.Repo("acme/app", files, "v1.0.0")
	repo.Git("repack", "-adfq", "--depth=50")
	s := newSource(t, options(t, server))
	_, tree := checkout(t, s, Request{Repo: repo.URL, Version: "v1.0.0"})
	for name := range files {
		got, err := os.ReadFile(filepath.Join(tree.Dir, name))
		if err != nil || string(got) != files.Content(name) {
			t.Errorf("%s has %d bytes, %v, want its %d", name, len(got), err, len(files.Content(name)))
		}
	}
	if info, err := os.Stat(glob(t, mirrorOf(t, s, repo.URL), "*.pack")[0]); err != nil || info.Size() > 8<<20 {
		t.Errorf("the pack = %d bytes, %v, want differences in it", info.Size(), err)
	}
}
