package spool

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tendril-run/tendril/internal/provision"
)

func TestCut(t *testing.T) {
	t.Parallel()
	const target = provision.ChunkTarget
	xs := func(n int) string { return strings.Repeat("x", n) }
	for name, tt := range map[string]struct {
		text string
		size int
		n    int
		full bool
	}{
		"fits":                      {xs(100), 0, 100, false},
		"one byte short":            {xs(9), target - 10, 9, false},
		"exactly":                   {xs(10), target - 10, 10, true},
		"ends with the line":        {xs(15) + "\n" + xs(50), target - 10, 16, true},
		"line ends at the target":   {xs(9) + "\n" + xs(50), target - 10, 10, true},
		"line that is far too long": {xs(4 * target), 0, target, true},
		"rune at the target":        {xs(9) + "😀" + xs(5*target), target - 10, 13, true},
	} {
		if n, full := cut([]byte(tt.text), tt.size); n != tt.n || full != tt.full {
			t.Errorf("%s: cut() = %d, %t, want %d, %t", name, n, full, tt.n, tt.full)
		}
	}
}

// FuzzCut: chunks are never too large, never empty, end at runes, and lose
// nothing.
func FuzzCut(f *testing.F) {
	f.Add("line\n", uint16(5000), uint16(100))
	f.Add("é😀", uint16(3000), uint16(10239))
	f.Add("x", uint16(40000), uint16(0))
	f.Add("\n", uint16(65535), uint16(1))
	f.Add("\x00\xff", uint16(20000), uint16(10000))
	f.Add(strings.Repeat("x", 99)+"\n", uint16(500), uint16(10238))
	f.Add("😀", uint16(5000), uint16(10237))
	f.Fuzz(func(t *testing.T, unit string, times, size uint16) {
		if len(unit) > 100 {
			return // too slow to be worth a fuzzer's time
		}
		text := []byte(strings.Repeat(strings.ToValidUTF8(unit, "\ufffd"), int(times)))
		at := int(size) % provision.ChunkTarget
		for len(text) > 0 {
			n, full := cut(text, at)
			if n <= 0 || n > len(text) || (!full && n != len(text)) {
				t.Fatalf("cut(%d bytes, %d) = %d, %t", len(text), at, n, full)
			}
			if !utf8.Valid(text[:n]) {
				t.Fatalf("cut(%d bytes, %d) = %d, which splits a rune", len(text), at, n)
			}
			if at += n; at > provision.MaxChunk || full != (at >= provision.ChunkTarget) {
				t.Fatalf("cut() fills a chunk to %d bytes, full %t", at, full)
			}
			if full {
				at = 0
			}
			text = text[n:]
		}
	})
}
