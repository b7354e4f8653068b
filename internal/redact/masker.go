package redact

import (
	"bytes"
	"slices"
)

// Stream masks one stream of bytes. However the bytes are cut, the text is the
// same. A Stream is for one goroutine at a time.
type Stream struct {
	secrets *Secrets
	cleaner cleaner
	masker  masker
}

// Mask returns the masked text of p and of what was held before it, as far as it
// is decided. The result lives until the next call and may be part of p.
func (s *Stream) Mask(p []byte) []byte {
	s.masker.find = s.secrets.patterns() // values may have been added
	return s.masker.mask(s.cleaner.clean(p))
}

// Flush returns what is held: nothing more comes that could complete it. The
// result lives until the next call.
func (s *Stream) Flush() []byte {
	s.masker.find = s.secrets.patterns()
	text := slices.Clone(s.masker.mask(s.cleaner.flush()))
	return append(text, s.masker.flush()...)
}

// maskText hides the secrets of a complete text.
func maskText(find *patterns, text string) string {
	text = cleanString(text)
	if text == "" {
		return ""
	}
	m := masker{find: find}
	return string(m.release([]byte(text), m.scan([]byte(text), true)))
}

// masker hides secrets and tokens in one stream of clean text. What overlaps is
// hidden as one. It holds back the text from the first place where a secret or
// a token may begin that more bytes must decide: less than maxPattern bytes of a
// secret, less than maxToken of a token. So the result does not depend on how
// the text is cut.
type masker struct {
	find  *patterns // for what is held, too
	held  []byte
	spans []span   // what is to be hidden of held, in order, without overlaps
	more  []*class // what ended with the text goes on, with bytes of these
	key   key
	prev  byte // what stood before held; 0 at the start

	joined, out, flat []byte // reused
}

// span is a range of held bytes that belong to secrets. A start of -1 says that
// Mask is written for it already.
type span struct{ start, end int }

// mask returns what is decided of p and of what was held before it. The result
// lives until the next call and may be part of p.
func (m *masker) mask(p []byte) []byte {
	if len(p) == 0 {
		return nil
	}
	text := p
	if len(m.held) > 0 {
		m.joined = append(append(m.joined[:0], m.held...), p...)
		text = m.joined
	}
	m.continueTokens(text, len(m.held))
	until := m.scan(text, false)
	out := m.release(text, until)
	m.held = append(m.held[:0], text[until:]...)
	return out
}

// flush returns what is held: there will be no more of this text.
func (m *masker) flush() []byte {
	text := append(m.joined[:0], m.held...)
	m.joined = text
	out := m.release(text, m.scan(text, true))
	m.held, m.spans, m.more, m.key, m.prev = m.held[:0], m.spans[:0], m.more[:0], key{}, 0
	return out
}

// continueTokens hides what follows tokens that went to the end of the text before.
func (m *masker) continueTokens(text []byte, from int) {
	to := from
	m.more = slices.DeleteFunc(m.more, func(c *class) bool {
		end := from + c.run(text, from)
		to = max(to, end)
		return end < len(text)
	})
	if to == from {
		return
	}
	if last := len(m.spans) - 1; last >= 0 && m.spans[last].end == from {
		m.spans[last].end = to
	} else {
		m.spans = append(m.spans, span{-1, to}) // it was released, and nothing is held
	}
}

// scan notes what is to be hidden of text, which begins with what is held, and
// returns the first place that more text must decide; the end if there is none.
func (m *masker) scan(text []byte, whole bool) int {
	m.flatten(text)
	next := m.find.next(m.flat, 0)
	for i := 0; i < len(text); i++ {
		if i < m.key.left && !m.keyLine(text, i, whole) {
			return i
		}
		if i == next {
			if !m.match(text, i, whole) {
				return i
			}
			next = m.find.next(m.flat, i+1)
		}
		if i+1 >= m.key.left { // else each place may be part of the key
			i = next - 1
		}
	}
	return len(text)
}

// flatten turns the ends of lines into spaces: engines wrap their messages, and
// so break a secret that has spaces at any of them. Secrets are searched for in
// the result.
func (m *masker) flatten(text []byte) {
	m.flat = append(m.flat[:0], text...)
	for rest := m.flat; ; {
		at := bytes.IndexByte(rest, '\n')
		if at < 0 {
			return
		}
		rest[at] = ' '
		rest = rest[at+1:]
	}
}

// match notes what begins at a place. It reports whether that is decided.
func (m *masker) match(text []byte, i int, whole bool) bool {
	found, longer := m.find.at(m.flat[i:])
	known := false
	for ; found >= 0; found = m.find.sorted[found].up {
		pattern := &m.find.sorted[found]
		if pattern.known && !known {
			known = true // the longest
			m.add(span{i, i + len(pattern.text)})
		}
		if pattern.token >= 0 && hasPrefix(text[i:], pattern.text) && !m.judge(text, i, prefixes[pattern.token], whole) {
			longer = true
		}
	}
	return !longer || whole
}

// judge notes the token that may begin at a place. It reports whether that is
// decided.
func (m *masker) judge(text []byte, i int, p prefix, whole bool) bool {
	from := i + p.named
	rest := text[from:]
	v := p.kind.judge(rest[:min(len(rest), maxToken)], whole)
	switch v.answer {
	case undecided:
		return false
	case beginsKey:
		m.key = key{left: maxKey + i}
	case endsKey:
		m.key = key{}
	case isToken:
		s := span{from + v.from, from + v.to}
		if v.more != nil {
			s.end += v.more.run(text, s.end)
		}
		if !p.kind.keep {
			s.start = i
		}
		m.addOpen(text, s, v.more)
	}
	return true
}

// add joins a secret with those it overlaps.
func (m *masker) add(s span) {
	from := len(m.spans)
	for from > 0 && m.spans[from-1].end > s.start {
		from--
	}
	to := from
	for ; to < len(m.spans) && m.spans[to].start < s.end; to++ {
		s = span{min(s.start, m.spans[to].start), max(s.end, m.spans[to].end)}
	}
	m.spans = slices.Replace(m.spans, from, to, s)
}

// addOpen is add for what goes on after the text, if it goes to its end, for as
// long as there are bytes of a class.
func (m *masker) addOpen(text []byte, s span, more *class) {
	m.add(s)
	if more != nil && s.end == len(text) {
		m.more = append(m.more, more)
	}
}

// release returns text[:until] with its secrets hidden; spans then count from
// until. A secret that starts at until can be shown as hidden at once: nothing
// found later starts before it.
func (m *masker) release(text []byte, until int) []byte {
	if until > 0 {
		m.prev = text[until-1]
	}
	m.key.left = max(0, m.key.left-until)
	if len(m.spans) == 0 {
		return text[:until]
	}
	m.out = m.out[:0]
	shown, kept := 0, m.spans[:0]
	for _, s := range m.spans {
		if s.start <= until {
			if s.start >= 0 {
				m.out = append(m.out, text[shown:s.start]...)
				m.out = append(m.out, Mask...)
			}
			shown = s.end
			if s.end <= until {
				continue
			}
			s.start = until - 1
		}
		kept = append(kept, span{s.start - until, s.end - until})
	}
	m.spans = kept
	if shown < until {
		m.out = append(m.out, text[shown:until]...)
	}
	return m.out
}

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
		return true // decided at an earlier place
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
