package printable

import (
	"fmt"
	"unicode"
)

// unseen are the characters that are shown as marks: control characters, what
// turns the direction of writing, what has no width. A tab and the end of a line
// are shown as they are.
var unseen = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0x00, 0x08, 1}, {0x0a, 0x1f, 1}, {0x7f, 0x9f, 1}, {0xad, 0xad, 1}, {0x34f, 0x34f, 1}, {0x61c, 0x61c, 1}, {0x115f, 0x1160, 1},
		{0x17b4, 0x17b5, 1}, {0x180b, 0x180f, 1}, {0x200b, 0x200f, 1}, {0x2028, 0x202e, 1}, {0x2060, 0x206f, 1}, {0x3164, 0x3164, 1},
		{0xfe00, 0xfe0f, 1}, {0xfeff, 0xfeff, 1}, {0xffa0, 0xffa0, 1}, {0xfff0, 0xfffb, 1},
	},
	R32:         []unicode.Range32{{0x1bca0, 0x1bca3, 1}, {0x1d173, 0x1d17a, 1}, {0xe0000, 0xe0fff, 1}},
	LatinOffset: 4,
}

// pictures are the blocks that emoji are from.
var pictures = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0xa9, 0xa9, 1}, {0xae, 0xae, 1}, {0x203c, 0x203c, 1}, {0x2049, 0x2049, 1}, {0x2122, 0x2122, 1}, {0x2139, 0x2139, 1}, {0x2194, 0x2199, 1},
		{0x21a9, 0x21aa, 1}, {0x231a, 0x231b, 1}, {0x2328, 0x2328, 1}, {0x23cf, 0x23cf, 1}, {0x23e9, 0x23f3, 1}, {0x23f8, 0x23fa, 1}, {0x24c2, 0x24c2, 1},
		{0x25aa, 0x25ab, 1}, {0x25b6, 0x25b6, 1}, {0x25c0, 0x25c0, 1}, {0x25fb, 0x25fe, 1}, {0x2600, 0x27bf, 1}, {0x2934, 0x2935, 1},
		{0x2b05, 0x2b07, 1}, {0x2b1b, 0x2b1c, 1}, {0x2b50, 0x2b50, 1}, {0x2b55, 0x2b55, 1}, {0x3030, 0x3030, 1}, {0x303d, 0x303d, 1},
		{0x3297, 0x3297, 1}, {0x3299, 0x3299, 1},
	},
	R32:         []unicode.Range32{{0x1f004, 0x1f0cf, 1}, {0x1f170, 0x1f19a, 1}, {0x1f201, 0x1f3fa, 1}, {0x1f400, 0x1faff, 1}, {0x1fc00, 0x1fffd, 1}},
	LatinOffset: 2,
}

// belongs reports whether a character that can't be seen belongs to an emoji:
// a joiner between two, or the choice of how one looks.
func belongs(before []rune, r rune, after rune) bool {
	at := len(before) - 1
	if at < 0 {
		return false
	}
	switch r {
	case 0xfe0e, 0xfe0f:
		last := before[at]
		return unicode.Is(pictures, last) || last >= '0' && last <= '9' || last == '#' || last == '*'
	case 0x200d:
		if before[at] >= 0x1f3fb && before[at] <= 0x1f3ff { // a colour of skin
			at--
		}
		if at >= 0 && before[at] == 0xfe0f {
			at--
		}
		return at >= 0 && unicode.Is(pictures, before[at]) && unicode.Is(pictures, after)
	}
	return false
}

// mark is how a character is shown that can't be seen.
func mark(r rune) string {
	if r < 0x20 {
		return string(0x2400 + r)
	}
	return fmt.Sprintf("U+%04X", r)
}
