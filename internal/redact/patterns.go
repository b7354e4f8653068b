package redact

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"
)

// patterns is a set of texts, each minSecret to maxPattern bytes long, and finds
// which of them begins at a place. They are sorted, and a table of their first
// four bytes rules out nearly every place. An automaton would read each byte
// once, but takes some 24 bytes for each byte of the patterns, and the forms of
// one secret have thousands.
type patterns struct {
	sorted []pattern
	// The first four bytes of each: firsts is a hash table of them, and table says
	// of each hash, at every place, whether one has it.
	table  [1 << tableBits]byte
	firsts []uint32
	shift  uint
	starts [256]bool // the first byte alone, for the end of a text
}

const (
	tableBits  = 14
	tableShift = 32 - tableBits
	multiplier = 2654435761 // Knuth's: 2³² by the golden ratio
)

// maxPattern is the longest pattern, in bytes: as much is held back while it may
// be the start of a secret.
const maxPattern = 64

type pattern struct {
	text  string
	up    int32 // the longest other pattern that this one begins with; -1: none
	token int16 // which of prefixes it is; -1: none
	known bool  // a secret, or a part of one
}

// newPatterns returns the set of the parts of secrets and the beginnings of tokens.
func newPatterns(parts []string, prefixes []prefix) *patterns {
	p := &patterns{sorted: make([]pattern, 0, len(parts)+len(prefixes))}
	for _, text := range parts {
		p.sorted = append(p.sorted, pattern{text: text, known: true, token: -1})
	}
	for i, prefix := range prefixes {
		p.sorted = append(p.sorted, pattern{text: prefix.text, token: int16(i)})
	}
	slices.SortFunc(p.sorted, func(a, b pattern) int { return strings.Compare(a.text, b.text) })
	p.sorted = merged(p.sorted)
	p.link()
	size := bits.Len(uint(len(p.sorted))) + 1
	p.firsts, p.shift = make([]uint32, 1<<size), uint(32-size)
	for _, one := range p.sorted {
		first := binary.LittleEndian.Uint32([]byte(one.text))
		p.firsts[p.slot(first)] = first
		p.table[first*multiplier>>tableShift] = 1
		p.starts[one.text[0]] = true
	}
	return p
}

// merged joins patterns of the same text.
func merged(sorted []pattern) []pattern {
	out := sorted[:0]
	for _, one := range sorted {
		if last := len(out) - 1; last >= 0 && out[last].text == one.text {
			out[last].known = out[last].known || one.known
			out[last].token = max(out[last].token, one.token)
			continue
		}
		out = append(out, one)
	}
	return out
}

// link sets up: what a pattern begins with stands before it, with nothing
// between that does not begin so as well.
func (p *patterns) link() {
	for i := range p.sorted {
		up := int32(i) - 1
		for up >= 0 && !strings.HasPrefix(p.sorted[i].text, p.sorted[up].text) {
			up = p.sorted[up].up
		}
		p.sorted[i].up = up
	}
}

// begins reports whether the first four bytes of text are those of a pattern.
func (p *patterns) begins(text []byte) bool {
	first := binary.LittleEndian.Uint32(text)
	return p.firsts[p.slot(first)] == first
}

// slot returns where in firsts something stands, or would. No pattern begins
// with four zeros, which is an empty slot.
func (p *patterns) slot(first uint32) uint32 {
	at := first * multiplier >> p.shift
	for p.firsts[at] != first && p.firsts[at] != 0 {
		at = (at + 1) % uint32(len(p.firsts))
	}
	return at
}

// next returns the first place from i on where a pattern may begin; len(text) if
// none does.
func (p *patterns) next(text []byte, i int) int {
	table := &p.table
	for i+8 <= len(text) {
		word := binary.LittleEndian.Uint64(text[i:]) // four places at a time
		if table[uint32(word)*multiplier>>tableShift]|
			table[uint32(word>>8)*multiplier>>tableShift]|
			table[uint32(word>>16)*multiplier>>tableShift]|
			table[uint32(word>>24)*multiplier>>tableShift] == 0 {
			i += 4
			continue
		}
		for range 4 {
			if p.begins(text[i:]) {
				return i
			}
			i++
		}
	}
	for ; i+4 <= len(text); i++ {
		if p.begins(text[i:]) {
			return i
		}
	}
	for ; i < len(text); i++ {
		if p.starts[text[i]] {
			return i
		}
	}
	return i
}

// at returns the number of the longest pattern that text begins with, -1 for
// none, and whether a longer one may begin so, once more of the text is known.
func (p *patterns) at(text []byte) (found int32, longer bool) {
	text = text[:min(len(text), maxPattern)]
	lo, hi := 0, len(p.sorted) // the first pattern that sorts after text
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); p.sorted[mid].text > string(text) {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	longer = lo < len(p.sorted) && strings.HasPrefix(p.sorted[lo].text, string(text))
	// All that text begins with sort before it, and what is between them and
	// text begins with them as well.
	found = int32(lo) - 1
	for found >= 0 && !hasPrefix(text, p.sorted[found].text) {
		found = p.sorted[found].up
	}
	return found, longer
}

// longerSecret reports whether text may be the beginning of a longer secret.
func (p *patterns) longerSecret(text []byte) bool {
	at := sort.Search(len(p.sorted), func(i int) bool { return p.sorted[i].text > string(text) })
	for ; at < len(p.sorted) && strings.HasPrefix(p.sorted[at].text, string(text)); at++ {
		if p.sorted[at].known {
			return true
		}
	}
	return false
}

func hasPrefix(text []byte, with string) bool {
	return len(text) >= len(with) && string(text[:len(with)]) == with
}

// split cuts a form that is longer than maxPattern into parts that overlap, so
// that those found hide the whole.
func split(form string) []string {
	var out []string
	for len(form) > maxPattern {
		end := runeStart(form, maxPattern)
		out = append(out, form[:end])
		// The next begins inside this one and is never short: a short one would
		// be found, and hidden, all over the log. It begins with no white space,
		// or the end of every line would be held.
		next := runeStart(form, min(end-1, len(form)-maxPattern/2))
		for at := next; at > maxPattern/4; at = runeStart(form, at-1) {
			if form[at] > ' ' {
				next = at
				break
			}
		}
		form = form[next:]
	}
	return append(out, form)
}

// runeStart returns the last start of a rune at or before i.
func runeStart(s string, i int) int {
	for i > 0 && !utf8.RuneStart(s[i]) {
		i--
	}
	return i
}
