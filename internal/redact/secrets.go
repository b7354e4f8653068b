package redact

import (
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/tendril-run/tendril/internal/provision"
)

// Mask replaces a secret.
const Mask = "***"

// minSecret is the shortest secret that is hidden, in bytes, and the shortest
// line of one that is hidden on its own. Hiding "}" and the like would make a
// log unreadable, and anything as short can be guessed.
const minSecret = 4

// maxSet bounds the size of all forms of a set's values, in bytes. Values added
// beyond it are searched for only as they are and inside JSON.
const maxSet = 16 << 20

// Secrets is a set of values that must not become readable. Tokens of
// well-known kinds are hidden even if it is empty. Its methods are safe for
// concurrent use; the zero value is an empty set.
type Secrets struct {
	mu     sync.Mutex
	values map[string]struct{}
	parts  []string // of all forms of the values, none longer than maxPattern
	size   int      // of parts, in bytes

	// Built from parts when first needed; nil until then.
	all   *patterns
	cross *crossPatterns
}

// Add hides the given values in all text that is masked later, and each line of
// a value that has several. A value is hidden wherever it occurs, so the caller
// leaves out values too common to be secret. Those shorter than four bytes are
// ignored.
func (s *Secrets) Add(values ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.parts)
	for _, value := range values {
		if _, known := s.values[value]; known || len(value) < minSecret {
			continue
		}
		if s.values == nil {
			s.values = map[string]struct{}{}
		}
		s.values[value] = struct{}{}
		for _, form := range forms(value, s.size < maxSet) {
			for _, part := range split(strings.ReplaceAll(form, "\n", " ")) { // see masker.flatten
				s.parts = append(s.parts, part)
				s.size += len(part)
			}
		}
	}
	if len(s.parts) == before {
		return
	}
	slices.Sort(s.parts)
	s.parts = slices.Compact(s.parts)
	s.all, s.cross = newPatterns(s.parts, prefixes), nil
}

// Text returns a complete text with its secrets hidden.
func (s *Secrets) Text(text string) string { return maskText(s.patterns(), text) }

// Detail returns a report's detail with the secrets hidden in all of its text,
// names and values. It leaves d, its slices and its maps as they are.
func (s *Secrets) Detail(d provision.Detail) provision.Detail {
	d = detailMasker{s.patterns()}.detail(d)
	if d.Outputs != nil {
		d.Outputs = detailMasker{s.withoutTokens()}.outputs(d.Outputs)
	}
	return d
}

// Stream returns what masks one stream of bytes.
func (s *Secrets) Stream() *Stream { return &Stream{secrets: s} }

// patterns returns what to search for in one text.
func (s *Secrets) patterns() *patterns {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.patternsLocked()
}

func (s *Secrets) patternsLocked() *patterns {
	if s.all == nil {
		s.all = newPatterns(s.parts, prefixes)
	}
	return s.all
}

// withoutTokens returns the patterns of the values alone.
func (s *Secrets) withoutTokens() *patterns {
	s.mu.Lock()
	defer s.mu.Unlock()
	return newPatterns(s.parts, nil)
}

// crossPatterns returns what to search for where events follow one another.
func (s *Secrets) crossPatterns() *crossPatterns {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cross == nil {
		s.cross = &crossPatterns{
			exact:    s.patternsLocked(),
			squeezed: s.folded(dropSpace, func(part string) bool { return strings.ContainsFunc(part, unicode.IsSpace) }),
			torn: s.folded(dropSpaceAndRunes, func(part string) bool {
				return strings.ContainsFunc(part, func(r rune) bool { return r >= utf8.RuneSelf })
			}),
		}
	}
	return s.cross
}

// folded returns the patterns of some parts, each as fold leaves it; nil if
// there are none.
func (s *Secrets) folded(fold foldFunc, some func(string) bool) *patterns {
	var texts []string
	for _, part := range s.parts {
		if !some(part) {
			continue
		}
		if text, _ := fold(nil, nil, []byte(part)); len(text) >= minSecret {
			texts = append(texts, string(text))
		}
	}
	if len(texts) == 0 {
		return nil
	}
	slices.Sort(texts)
	return newPatterns(slices.Compact(texts), nil)
}

// Text returns a text that is not part of a run's log with the given values and
// all tokens hidden.
func Text(text string, values ...string) string {
	var s Secrets
	s.Add(values...)
	return s.Text(text)
}
