package logstream

import (
	"bytes"
	"slices"
	"strings"
)

// Mask is what stands in the log where a secret was.
const Mask = "***"

// secrets is a set of values that must not appear in a log. Tokens of
// well-known kinds are hidden with none.
type secrets struct {
	values map[string]struct{}
	pieces []string // of all forms of the values
	size   int      // of pieces, in bytes
	find   *patterns
	joint  *joint // nil: to be made
}

// add adds values and reports whether the set has changed.
func (s *secrets) add(values ...string) bool {
	before := len(s.pieces)
	for _, value := range values {
		if _, known := s.values[value]; known || len(value) < MinSecret {
			continue
		}
		if s.values == nil {
			s.values = map[string]struct{}{}
		}
		s.values[value] = struct{}{}
		for _, form := range forms(value, s.size < maxSet) {
			for _, piece := range pieces(strings.ReplaceAll(form, "\n", " ")) { // see flatten
				s.pieces = append(s.pieces, piece)
				s.size += len(piece)
			}
		}
	}
	if len(s.pieces) == before {
		return false
	}
	slices.Sort(s.pieces)
	s.pieces = slices.Compact(s.pieces)
	s.find, s.joint = newPatterns(s.pieces, prefixes), nil
	return true
}

// patterns returns what to look for.
func (s *secrets) patterns() *patterns {
	if s.find == nil {
		s.find = newPatterns(s.pieces, prefixes)
	}
	return s.find
}

// masker hides secrets and tokens in one stream of clean text. What overlaps is
// hidden as one. Of the text it holds back only what stands behind the first
// place where a secret or a token may begin that more bytes must decide: of a
// secret less than maxPattern bytes, of a token less than maxToken. So what it
// makes of a text does not depend on how that is cut.
type masker struct {
	find  *patterns
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

// use makes find the patterns for all later text, and for what is held.
func (m *masker) use(find *patterns) { m.find = find }

// mask returns what can be told of p and of what was held before it. The
// result lives until the next call and may be part of p.
func (m *masker) mask(p []byte) []byte {
	if len(p) == 0 {
		return nil
	}
	text := p
	if len(m.held) > 0 {
		m.joined = append(append(m.joined[:0], m.held...), p...)
		text = m.joined
	}
	m.goOn(text, len(m.held))
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

// goOn hides what follows a token that went to the end of the text before.
func (m *masker) goOn(text []byte, from int) {
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
			if !m.look(text, i, whole) {
				return i
			}
			next = m.find.next(m.flat, i+1)
		}
		if i+1 >= m.key.left { // else each place is looked at
			i = next - 1
		}
	}
	return len(text)
}

// flatten makes spaces of the ends of lines: engines wrap what they say, and so
// break a secret that has spaces where it pleases them. Secrets are looked for
// in what is left.
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

// look notes what begins at a place. It reports whether that is decided.
func (m *masker) look(text []byte, i int, whole bool) bool {
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
