package redact

import (
	"bytes"
	"unicode/utf8"
)

// replacement stands for what the database could not store.
const replacement = string(utf8.RuneError)

// cleaner turns a stream of bytes into valid UTF-8 without NUL: NUL and every
// byte that is not UTF-8 become U+FFFD. It keeps the first part of a rune that
// is split over two writes, at most three bytes.
type cleaner struct {
	tail []byte
	out  []byte
}

// clean returns the text of p, and of what was kept before it. The result
// lives until the next call and may be p itself.
func (c *cleaner) clean(p []byte) []byte {
	if len(c.tail) > 0 {
		p = append(c.tail, p...)
	}
	whole := len(p) - partialRune(p)
	c.tail = append([]byte(nil), p[whole:]...)
	p = p[:whole]
	if IsClean(p) {
		return p
	}
	c.out = appendClean(c.out[:0], p)
	return c.out
}

// flush returns what was kept: the beginning of a rune that never ended.
func (c *cleaner) flush() []byte {
	c.out = appendClean(c.out[:0], c.tail)
	c.tail = nil
	return c.out
}

// IsClean reports whether the database can store p as it is: it is valid UTF-8
// without NUL.
func IsClean(p []byte) bool { return bytes.IndexByte(p, 0) < 0 && utf8.Valid(p) }

// partialRune returns how many bytes at the end of p begin a rune that more
// bytes could complete.
func partialRune(p []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(p); n++ {
		if last := p[len(p)-n:]; utf8.RuneStart(last[0]) {
			if utf8.FullRune(last) {
				return 0
			}
			return n
		}
	}
	return 0
}

func appendClean(out, p []byte) []byte {
	for len(p) > 0 {
		r, size := utf8.DecodeRune(p)
		if r == 0 || (r == utf8.RuneError && size == 1) {
			out = append(out, replacement...)
		} else {
			out = append(out, p[:size]...)
		}
		p = p[size:]
	}
	return out
}

// cleanString is clean for a complete text.
func cleanString(s string) string {
	p := []byte(s)
	if IsClean(p) {
		return s
	}
	return string(appendClean(nil, p))
}
