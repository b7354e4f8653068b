package source

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

// seal makes a pack of some bytes with a true checksum.
func seal(count uint32, body []byte) []byte {
	pack := append([]byte("PACK\x00\x00\x00\x02"), binary.BigEndian.AppendUint32(nil, count)...)
	pack = append(pack, body...)
	sum := sha1.Sum(pack)
	return append(pack, sum[:]...)
}

func emptyMirror(t testing.TB) mirror {
	t.Helper()
	m := mirror{t.TempDir()}
	if err := m.prepare(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	return m
}

func packFiles(t testing.TB, m mirror) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(m.packs(), "*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// realPack is the pack that git makes of a repository.
func realPack(t testing.TB) []byte {
	t.Helper()
	repo := gittest.NewRepo(t)
	repo.Commit(hello())
	repo.Git("repack", "-adq")
	names, err := filepath.Glob(filepath.Join(repo.Dir, "objects/pack/*.pack"))
	if err != nil || len(names) != 1 {
		t.Fatalf("packs = %q, %v, want one", names, err)
	}
	content, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestReceive(t *testing.T) {
	t.Parallel()
	pack := realPack(t)
	m := emptyMirror(t)
	for range 2 { // the same again changes nothing
		if err := m.receive(bytes.NewReader(pack)); err != nil {
			t.Fatal(err)
		}
		if names := packFiles(t, m); len(names) != 2 {
			t.Errorf("files = %q, want a pack and its index", names)
		}
	}
	// git itself agrees with the index.
	index := strings.TrimSuffix(packFiles(t, m)[1], ".pack") + ".idx"
	if out, err := exec.CommandContext(t.Context(), "git", "verify-pack", index).CombinedOutput(); err != nil {
		t.Errorf("git verify-pack: %v: %s", err, out)
	}
	if err := emptyMirror(t).receive(bytes.NewReader(seal(0, nil))); err != nil {
		t.Errorf("receive(pack without objects) = %v, want nil", err)
	}
}

func TestReceiveRefuses(t *testing.T) {
	t.Parallel()
	pack := realPack(t)
	flipped := bytes.Clone(pack)
	flipped[len(flipped)/2] ^= 1
	tests := map[string][]byte{
		"nothing":              nil,
		"no pack":              bytes.Repeat([]byte("x"), 100),
		"cut":                  pack[:len(pack)-1],
		"a flipped bit":        flipped,
		"billions of objects":  seal(1<<32-1, bytes.Repeat([]byte{0}, 100)),
		"more objects than is": seal(3, pack[12:40]),
		"rubbish for objects":  seal(1, []byte(strings.Repeat("rubbish", 10))),
		"a delta of nothing":   seal(1, append([]byte{0x61, 0x7f}, make([]byte, 40)...)),
		"a delta of a stranger": seal(1, append(append([]byte{0x74}, bytes.Repeat([]byte{7}, 20)...),
			0x78, 0x9c, 0x63, 0x60, 0x60, 0x60, 0x00, 0x00, 0x00, 0x04, 0x00, 0x01)),
	}
	for name, content := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := emptyMirror(t)
			if err := m.receive(bytes.NewReader(content)); !errors.Is(err, errBadPack) {
				t.Errorf("receive = %v, want %v", err, errBadPack)
			}
			if left := packFiles(t, m); len(left) > 0 {
				t.Errorf("left in the mirror: %q, want nothing", left)
			}
		})
	}
}

// Whatever a server sends either is a pack that can be read or leaves nothing.
func FuzzReceive(f *testing.F) {
	pack, here := realPack(f), blobPack(f, strings.Repeat("x", 100))
	f.Add(pack[12:len(pack)-20], binary.BigEndian.Uint32(pack[8:]))
	thin := thinPack(blob(strings.Repeat("x", 100)))
	f.Add(thin[12:len(thin)-20], uint32(1))
	f.Add([]byte("rubbish"), uint32(1))
	f.Fuzz(func(t *testing.T, body []byte, count uint32) {
		m := emptyMirror(t)
		if err := m.receive(bytes.NewReader(here)); err != nil {
			t.Fatal(err)
		}
		err := m.receive(bytes.NewReader(seal(count, body)))
		names := packFiles(t, m)
		if err != nil && len(names) > 2 {
			t.Fatalf("receive = %v, but left %q", err, names)
		}
		if err == nil && len(names) == 4 {
			storage := m.storage()
			defer func() { _ = storage.Close() }()
			_ = objects{storage}.has([20]byte{})
		}
	})
}
