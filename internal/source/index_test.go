package source

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

// chains is a repository whose packs hold long chains of differences: a file
// that grows in each of 60 commits, another that shrinks, and many that are
// nearly the same.
func chains(t *testing.T) *gittest.Repo {
	t.Helper()
	repo := gittest.NewRepo(t)
	text := strings.Repeat(noise(40)+"\n", 20)
	for i := range 60 {
		files := gittest.Files{
			"grows":     gittest.File(strings.Repeat(text, 2) + strings.Repeat(fmt.Sprintf("%d\n", i), i*20)),
			"shrinks":   gittest.File(strings.Repeat(text+fmt.Sprintf("%d\n", i), 80-i)),
			"empty":     gittest.File(""),
			"random":    gittest.File(noise(1000 + i)),
			"dir/a.txt": gittest.File(text + fmt.Sprint(i)),
		}
		for j := range 10 {
			files[fmt.Sprintf("same/%d", j)] = gittest.File(text + fmt.Sprint(j))
		}
		repo.Commit(files)
	}
	repo.AnnotatedTag("v1", "main")
	return repo
}

// TestIndexIsGits: of every kind of pack that git makes, the index is the one
// that git makes.
func TestIndexIsGits(t *testing.T) {
	t.Parallel()
	repo := chains(t)
	for name, config := range map[string][]string{
		"bases by offset": {"-c", "repack.useDeltaBaseOffset=true"},
		"bases by id":     {"-c", "repack.useDeltaBaseOffset=false"},
		"any depth":       {"-c", "pack.depth=200"},
		"no differences":  {"-c", "pack.window=0"},
	} {
		t.Run(name, func(t *testing.T) { // one after the other: they repack the same repository
			repo.Git(append(config, "repack", "-adfq")...)
			found, err := filepath.Glob(filepath.Join(repo.Dir, "objects/pack/*.pack"))
			if err != nil || len(found) != 1 {
				t.Fatalf("packs = %v, %v, want one", found, err)
			}
			pack, err := os.Open(found[0])
			if err != nil {
				t.Fatal(err)
			}
			defer pack.Close() //nolint:errcheck // only read
			checksum, err := checkPack(pack)
			if err != nil {
				t.Fatal(err)
			}
			got, _, err := indexPack(pack, checksum, objects{})
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(strings.TrimSuffix(found[0], "pack") + "idx")
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("the index has %d bytes and is not git's of %d", len(got), len(want))
			}
		})
	}
}
