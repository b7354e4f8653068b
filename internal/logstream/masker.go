package logstream

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"
)

// Mask is what stands in the log where a secret was.
const Mask = "***"

// maxPattern bounds the bytes that are held back while they may be the start
// of a secret. A longer secret is looked for in pieces that overlap, so the
// pieces found hide the whole.
const maxPattern = 4 << 10

// secrets is a set of values that must not appear in a log.
type secrets struct {
	patterns map[string]struct{}
	find     *automaton // nil while there is no secret
}

// add adds values and reports whether the set has changed.
func (s *secrets) add(values ...string) bool {
	before := len(s.patterns)
	for _, value := range values {
		for _, form := range forms(value) {
			for _, piece := range pieces(form) {
				if s.patterns == nil {
					s.patterns = map[string]struct{}{}
				}
				s.patterns[piece] = struct{}{}
			}
		}
	}
	if len(s.patterns) == before {
		return false
	}
	all := make([]string, 0, len(s.patterns))
	for p := range s.patterns {
		all = append(all, p)
	}
	slices.Sort(all)
	s.find = newAutomaton(all)
	return true
}

// minLine is the fewest bytes a line of a secret must have to be hidden on its
// own: "}" and the like would blot out half a log.
const minLine = 4

// forms returns the ways a secret is written in a log: as it is, and inside a
// JSON string with and without the escaping of <, > and & (Terraform's
// jsonencode escapes them); and each of its lines in these ways, because what
// prints it may indent every line or put a name before it. White space around
// it is no part of the secret: a file's last newline is seldom printed with it.
func forms(value string) []string {
	value = strings.TrimSpace(cleanString(value))
	if value == "" {
		return nil
	}
	out := writings(value)
	lines := strings.FieldsFunc(value, func(r rune) bool { return r == '\n' || r == '\r' })
	if len(lines) < 2 {
		return out
	}
	for _, line := range lines {
		if line = strings.TrimSpace(line); len(line) >= minLine {
			out = append(out, writings(line)...)
		}
	}
	return out
}

func writings(text string) []string {
	return []string{text, jsonForm(text, false), jsonForm(text, true)}
}

func jsonForm(value string, escapeHTML bool) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(escapeHTML)
	if err := e.Encode(value); err != nil { // a string in memory: cannot happen
		return value
	}
	quoted := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	return string(quoted[1 : len(quoted)-1])
}

// pieces cuts a pattern that is too long into overlapping ones.
func pieces(pattern string) []string {
	var out []string
	for len(pattern) > maxPattern {
		end := runeStart(pattern, maxPattern)
		out = append(out, pattern[:end])
		// The next begins inside this one, at a rune, and is never short: a
		// short one would be found, and hidden, all over the log.
		pattern = pattern[runeStart(pattern, min(end-1, len(pattern)-maxPattern/2)):]
	}
	return append(out, pattern)
}

// runeStart returns the last start of a rune at or before i.
func runeStart(s string, i int) int {
	for i > 0 && !utf8.RuneStart(s[i]) {
		i--
	}
	return i
}

// masker hides the secrets in one stream of clean text. What overlaps is
// hidden as one. Of the text it holds back only the end that may be the start
// of a secret.
type masker struct {
	find  *automaton
	at    int32  // the automaton's node after held
	held  []byte // the longest end of the text that is a pattern's prefix
	spans []span // what is to be hidden of held, in order, without overlaps

	joined, out []byte // reused
}

// span is a range of held bytes that belong to secrets. A start of -1 says that
// Mask is written for it already.
type span struct{ start, end int }

// use makes find the automaton for all later text, and for what is held.
func (m *masker) use(find *automaton) {
	if m.find == find {
		return
	}
	m.find, m.at = find, 0
	if len(m.spans) > 0 && m.spans[0].start < 0 {
		m.spans = m.spans[:1]
	} else {
		m.spans = m.spans[:0]
	}
	m.scan(m.held, 0)
}

// mask returns what can be told of p and of what was held before it. The
// result lives until the next call and may be part of p.
func (m *masker) mask(p []byte) []byte {
	if m.find == nil {
		return p
	}
	text := p
	if len(m.held) > 0 {
		m.joined = append(append(m.joined[:0], m.held...), p...)
		text = m.joined
	}
	m.scan(text, len(m.held))
	until := len(text) - int(m.find.nodes[m.at].depth)
	out := m.release(text, until)
	m.held = append(m.held[:0], text[until:]...)
	return out
}

// flush returns what is held: there will be no more of this text.
func (m *masker) flush() []byte {
	out := m.release(m.held, len(m.held))
	m.at, m.held = 0, m.held[:0]
	return out
}

// scan adds the secrets that end in text[from:] to spans; text begins with
// what is held.
func (m *masker) scan(text []byte, from int) {
	if m.find == nil {
		return
	}
	at, nodes, root := m.at, m.find.nodes, &m.find.root
	for i := from; i < len(text); i++ {
		if at == 0 {
			at = root[text[i]]
			if at == 0 {
				continue
			}
		} else {
			at = m.find.step(at, text[i])
		}
		if n := int(nodes[at].match); n > 0 {
			m.add(span{i + 1 - n, i + 1})
		}
	}
	m.at = at
}

// add joins a secret with those it overlaps. Secrets are found in the order of
// their ends.
func (m *masker) add(s span) {
	last := len(m.spans) - 1
	for ; last >= 0 && m.spans[last].end > s.start; last-- {
		s.start = min(s.start, m.spans[last].start)
	}
	m.spans = append(m.spans[:last+1], s)
}

// release returns text[:until] with its secrets hidden; spans then count from
// until. A secret that starts at until can be shown as hidden at once: nothing
// found later starts before it.
func (m *masker) release(text []byte, until int) []byte {
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

// maskString hides the secrets of a text that is complete.
func (s *secrets) maskString(text string) string {
	text = cleanString(text)
	if s.find == nil {
		return text
	}
	m := masker{find: s.find}
	out := string(m.mask([]byte(text)))
	return out + string(m.flush())
}
