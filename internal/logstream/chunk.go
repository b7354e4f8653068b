package logstream

import (
	"bytes"
	"unicode/utf8"

	"github.com/tendril-run/tendril/internal/provision"
)

// lineSlack is how far a chunk goes beyond provision.ChunkTarget to end with
// the line it is in, in bytes.
const lineSlack = 2 << 10

// cut returns how much of text goes into a chunk that holds size bytes, and
// whether the chunk is full then. It cuts at the end of the line that reaches
// the target where that is near, else at the end of the rune. A full chunk is
// smaller than ChunkTarget + lineSlack + utf8.UTFMax, far below MaxChunk.
func cut(text []byte, size int) (n int, full bool) {
	room := provision.ChunkTarget - size
	if len(text) < room {
		return len(text), false
	}
	near := text[:min(len(text), room+lineSlack)]
	if i := bytes.IndexByte(near[room-1:], '\n'); i >= 0 {
		return room + i, true
	}
	n = room
	for n < len(text) && !utf8.RuneStart(text[n]) {
		n++
	}
	return n, true
}
