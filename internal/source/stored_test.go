package source

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

// deltaPack is a pack of a whole blob and of differences, each to the one before
// it.
func deltaPack(t testing.TB, whole string, differences ...[]byte) []byte {
	t.Helper()
	var body bytes.Buffer
	put := func(kind plumbing.ObjectType, base, content []byte) {
		body.Write(objectHeader(kind, len(content)))
		body.Write(base)
		w := zlib.NewWriter(&body)
		_, _ = w.Write(content)
		_ = w.Close()
	}
	put(plumbing.BlobObject, nil, []byte(whole))
	content := []byte(whole)
	for _, difference := range differences {
		base := plumbing.ComputeHash(plumbing.BlobObject, content)
		put(plumbing.REFDeltaObject, base[:], difference)
		var err error
		if content, err = patch(content, difference); err != nil {
			t.Fatal(err)
		}
	}
	return seal(uint32(1+len(differences)), body.Bytes())
}

// copies is a difference to size bytes that copies ranges of them, of less than
// 16 MB.
func copies(size int, ranges ...[2]int) []byte {
	var n int
	for _, r := range ranges {
		n += r[1] - r[0]
	}
	b := binary.AppendUvarint(binary.AppendUvarint(nil, uint64(size)), uint64(n))
	for _, r := range ranges {
		b = append(b, 0xff)
		b = binary.LittleEndian.AppendUint32(b, uint32(r[0]))
		n := r[1] - r[0]
		b = append(b, byte(n), byte(n>>8), byte(n>>16))
	}
	return b
}

// A difference may take its parts in any order. What is made from it is right,
// and so is what is made from that.
func TestReadOfDifferencesThatGoBackAndForth(t *testing.T) {
	t.Parallel()
	for _, size := range []int{256 << 10, 6 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			text := noise(size)
			mixed := text[size/8:size*5/8] + text[:size/16] + text[size*3/4:]
			end := mixed[len(mixed)-10<<10:]
			m := emptyMirror(t)
			if err := m.receive(bytes.NewReader(deltaPack(t, text,
				copies(size, [2]int{size / 8, size * 5 / 8}, [2]int{0, size / 16}, [2]int{size * 3 / 4, size}),
				copies(len(mixed), [2]int{len(mixed) - 10<<10, len(mixed)})))); err != nil {
				t.Fatal(err)
			}
			have, err := m.objects()
			if err != nil {
				t.Fatal(err)
			}
			defer have.close()
			for name, want := range map[string]string{"whole": text, "mixed": mixed, "its end": end} {
				var got strings.Builder
				if _, err := have.copy(&got, plumbing.BlobObject, blob(want), maxDeltified); err != nil || got.String() != want {
					t.Errorf("%s: %d bytes, %v, want its %d", name, got.Len(), err, len(want))
				}
			}
		})
	}
}

// Such differences are what git makes of a file that was put in another order.
func TestNextVersionGoesBackAndForth(t *testing.T) {
	t.Parallel()
	const mb = 1 << 20
	text := noise(7 * mb)
	files := gittest.Text(map[string]string{"main.tf": "# v1\n", "big.bin": text})
	server := gittest.NewServer(t)
	repo, _ := server.Repo("acme/app", files, "v1")
	mixed := text[2*mb:6*mb] + text[:32<<10] + text[13*mb/2:]
	files["big.bin"] = gittest.File(mixed)
	repo.Tag("v2", repo.Commit(files))
	s := newSource(t, options(t, server))
	checkout(t, s, Request{Repo: repo.URL, Version: "v1"})
	server.Reset()
	_, tree := checkout(t, s, Request{Repo: repo.URL, Version: "v2"})
	got, err := os.ReadFile(filepath.Join(tree.Dir, "big.bin"))
	if err != nil || string(got) != mixed {
		t.Errorf("big.bin has %d bytes, %v, want its %d", len(got), err, len(mixed))
	}
	if got := server.Requests(); got.Packs != 1 || got.Bytes > mb {
		t.Errorf("%d bytes in %d packs, want one difference", got.Bytes, got.Packs)
	}
}

// inserts is a difference to size bytes that has n bytes of its own.
func inserts(size, n int) []byte {
	b := binary.AppendUvarint(binary.AppendUvarint(nil, uint64(size)), uint64(n))
	for ; n > 0; n -= min(n, 127) {
		b = append(append(b, byte(min(n, 127))), make([]byte, min(n, 127))...)
	}
	return b
}

// A few kilobytes of git can stand for large differences, of which no more than
// one is held at once.
func TestReadOfLargeDifferencesTakesLittleMemory(t *testing.T) {
	const mb = 1 << 20
	size := 100
	var differences [][]byte
	for i := range 32 {
		differences = append(differences, inserts(size, mb-i))
		size = mb - i
	}
	m := emptyMirror(t)
	if err := m.receive(bytes.NewReader(deltaPack(t, strings.Repeat("x", 100), differences...))); err != nil {
		t.Fatal(err)
	}
	have, err := m.objects()
	if err != nil {
		t.Fatal(err)
	}
	defer have.close()
	last := blob(string(make([]byte, size)))
	grew := peakHeap(t, func() {
		if _, err := have.copy(io.Discard, plumbing.BlobObject, last, mb); err != nil {
			t.Error(err)
		}
	})
	t.Logf("reading took %d MB", grew/mb)
	if grew > 16*mb {
		t.Errorf("reading took %d MB, want no more than of one difference at once", grew/mb)
	}
}
