package logstream

// A private key in PEM is hidden line by line between its first and its last
// one: what prints it may put a name before each, and other lines may stand
// between them.

// maxKey is how far behind its first line a key may go, in bytes.
const maxKey = 16 << 10

// longKeyLine is how many characters of base64 between the two are hidden
// wherever they stand; fewer are if they are all of a line but for what is put
// before it, and as long as base64 is.
const longKeyLine = 16

// key is a private key that is being printed.
type key struct{ left int } // how much of the text, from what is held on, may be of it

// keyLine notes the piece of a key that begins at a place. It reports whether
// that is decided.
func (m *masker) keyLine(text []byte, i int, whole bool) bool {
	before := m.prev
	if i > 0 {
		before = text[i-1]
	}
	from, alone := i, before == 0 || before <= ' ' || before == '"' || before == '|'
	if before == '\\' && (text[i] == 'n' || text[i] == 'r') { // a line's end inside JSON
		from, alone = i+1, true
	} else if stdBase64[before] {
		return true // looked at already
	}
	end := from + stdBase64.run(text, from)
	n := end - from
	switch {
	case n >= longKeyLine:
		m.addOpen(text, span{from, end}, stdBase64)
	case end == len(text) && i < end && !whole:
		return false
	case alone && n > 0 && n%4 == 0 && (end == len(text) || endsLine(text[end])):
		m.add(span{from, end})
	}
	return true
}

func endsLine(b byte) bool { return b == '\n' || b == '\r' || b == '\\' || b == '"' }
