package redact

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// joinFor is how long a line waits for the next one where its end may be the
// beginning of a secret. The engine hands an unfinished line over after 100 ms.
const joinFor = 200 * time.Millisecond

// maxJoined bounds the undecided text, in bytes.
const maxJoined = 2 * maxToken

// Pieces hides secrets in what one provisioner prints. The engine hands that
// over as events: each is a line, or a piece of one if the program paused for
// 100 ms. It does not say which, and strips white space from the end, so a
// secret may continue in the next event with or without white space between.
//
//	events   pw=hunt     er2 and more
//	log      a: pw=***   a:  and more
//
// Each event becomes a line of its own, without what is hidden. A line whose end
// may be the beginning of a secret waits joinFor for the next event. Then it is
// shown, but for minSecret bytes or more of a possible secret: these wait for
// the next event, or for Close. What is shown of a secret by then, three bytes
// at most, does not keep the rest of it from being hidden.
//
// Pieces hides only what continues in another event. It writes to a Stream, which
// hides what stands within one.
type Pieces struct {
	secrets *Secrets
	name    string
	out     io.Writer

	mu     sync.Mutex
	closed bool
	timer  *time.Timer
	text   []byte     // from the first byte that is undecided or not shown
	ends   []int      // of the events in text
	done   int        // how many of these are in the log
	shown  int        // text[:shown] is in the log
	found  []crossing // in order, without overlaps

	line, folded []byte // reused
	places       []int
}

// crossPatterns are what to search for where events follow one another. A nil
// set is empty.
type crossPatterns struct {
	exact *patterns
	// squeezed are the parts that have white space, without it: the engine strips it.
	squeezed *patterns
	// torn are the parts that are not ASCII: of a rune that was cut in two the
	// engine hands over U+FFFD for each byte. See dropSpaceAndRunes.
	torn *patterns
}

// crossing is a secret in text, which may cross the end of an event.
type crossing struct {
	span
	crosses bool // also after discard, which knows fewer ends
	shown   bool // Mask is in the log for it
}

// decision says how far text is decided. Each is a place in the text; its end if
// there is nothing.
type decision struct {
	undecided int // a secret or a token may begin here
	waiting   int // and enough of it is there to wait for more
	secret    int // and so much of it is there that it must not be shown
}

// NewPieces returns a Pieces that writes lines to out, with the name before each.
// Close it when the provisioner has ended.
func NewPieces(s *Secrets, name string, out io.Writer) *Pieces {
	p := &Pieces{secrets: s, name: name, out: out}
	p.timer = time.AfterFunc(time.Hour, p.pause)
	p.timer.Stop()
	return p
}

// Piece takes the text of one event.
func (p *Pieces) Piece(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.timer.Stop()
	for line := range strings.SplitSeq(strings.TrimRight(text, "\r\n"), "\n") {
		p.text = append(p.text, cleanString(strings.TrimRight(line, "\r"))...)
		p.ends = append(p.ends, len(p.text))
	}
	d := p.find(len(p.text) > maxJoined)
	until := p.shown
	for _, end := range p.ends[p.done:] {
		if end <= d.waiting {
			until = end
		}
	}
	p.show(until)
	p.discard(d.undecided)
	if p.done < len(p.ends) {
		p.timer.Reset(joinFor)
	}
}

// pause shows what does not wait any longer.
func (p *Pieces) pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	d := p.find(false)
	// What the stream hides within an event must not be cut.
	p.show(max(d.secret, p.behind(d.secret)))
	p.discard(d.undecided)
}

// Close shows what is left.
func (p *Pieces) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.closed = true
	p.timer.Stop()
	p.find(true)
	p.show(len(p.text))
}

// find notes the secrets in text. whole says that nothing more comes.
func (p *Pieces) find(whole bool) decision {
	sets := p.secrets.crossPatterns()
	d := decision{len(p.text), len(p.text), len(p.text)}
	p.search(sets.exact, p.text, nil, false, whole, &d)
	if sets.squeezed != nil {
		p.folded, p.places = dropSpace(p.folded[:0], p.places[:0], p.text)
		p.search(sets.squeezed, p.folded, p.places, false, whole, &d)
	}
	if sets.torn != nil && p.torn(0, len(p.text)) {
		p.folded, p.places = dropSpaceAndRunes(p.folded[:0], p.places[:0], p.text)
		p.search(sets.torn, p.folded, p.places, true, whole, &d)
	}
	return d
}

// torn reports whether an event in text[from:to] ends, or the next one begins,
// within a rune.
func (p *Pieces) torn(from, to int) bool {
	return slices.ContainsFunc(p.ends, func(end int) bool {
		return from < end && end <= to && (bytes.HasSuffix(p.text[:end], []byte(replacement)) || bytes.HasPrefix(p.text[end:], []byte(replacement)))
	})
}

// foldFunc appends a text as a search ignores some of it, and where each byte of
// that stands in the text.
type foldFunc func(out []byte, places []int, text []byte) ([]byte, []int)

// dropSpace removes white space.
func dropSpace(out []byte, places []int, text []byte) ([]byte, []int) {
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		for end := i + size; i < end; i++ {
			if !unicode.IsSpace(r) {
				out, places = append(out, text[i]), append(places, i)
			}
		}
	}
	return out, places
}

// dropSpaceAndRunes also replaces each byte of a rune that is not ASCII by 0xff;
// U+FFFD stands for one such byte.
func dropSpaceAndRunes(out []byte, places []int, text []byte) ([]byte, []int) {
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		switch {
		case unicode.IsSpace(r):
		case r == utf8.RuneError:
			out, places = append(out, 0xff), append(places, i)
		case r < utf8.RuneSelf:
			out, places = append(out, byte(r)), append(places, i)
		default:
			for n := range size {
				out, places = append(out, 0xff), append(places, i+n)
			}
		}
		i += size
	}
	return out, places
}

// search is find for one set of patterns. places are where the bytes of text
// stand in p.text; nil if it is that. torn asks for what has a torn rune only.
func (p *Pieces) search(find *patterns, text []byte, places []int, torn, whole bool, d *decision) {
	place := func(i int) int {
		if places == nil {
			return i
		}
		return places[i]
	}
	for i := find.next(text, 0); i < len(text); i = find.next(text, i+1) {
		rest := text[i:]
		at, longer := find.at(rest)
		known := false
		for ; at >= 0; at = find.sorted[at].up {
			pattern := &find.sorted[at]
			if pattern.known && !known {
				known = true // the longest
				s := span{place(i), place(i+len(pattern.text)-1) + 1}
				for s.end < len(p.text) && !utf8.RuneStart(p.text[s.end]) {
					s.end++
				}
				if !torn || p.torn(s.start, s.end-1) {
					p.note(s)
				}
			}
			if pattern.token >= 0 && hasPrefix(rest, pattern.text) {
				p.token(prefixes[pattern.token], i, whole, d)
			}
		}
		if !longer || whole || torn && !p.torn(place(i), len(p.text)) {
			continue
		}
		d.undecided = min(d.undecided, place(i))
		if find.longerSecret(rest) {
			d.waiting = min(d.waiting, place(i))
			if after := p.behind(place(i)); after > 0 { // a long secret goes on
				d.secret = min(d.secret, after)
			} else if len(rest) >= minSecret && strings.Trim(string(rest), string(rest[:1])) != "" { // a ruler is no secret
				d.secret = min(d.secret, place(i))
			}
		}
	}
}

// behind returns the end of the secret in which a place is; 0 if it is in none.
func (p *Pieces) behind(place int) int {
	for _, c := range p.found {
		if c.start <= place && place < c.end {
			return c.end
		}
	}
	return 0
}

// token notes the token that may begin at a place in text.
func (p *Pieces) token(of prefix, i int, whole bool, d *decision) {
	from := i + of.named
	rest := p.text[from:]
	v := of.kind.judge(rest[:min(len(rest), maxToken)], whole)
	switch v.answer {
	case undecided:
		d.undecided, d.waiting = min(d.undecided, i), min(d.waiting, i)
		if !plainURL(of, rest) {
			d.secret = min(d.secret, i)
		}
	case isToken:
		s := span{from + v.from, from + v.to}
		if v.more != nil {
			s.end += v.more.run(p.text, s.end)
		}
		if !of.kind.keep {
			s.start = i
		}
		p.note(s)
	default: // no token begins here
	}
}

// plainURL reports whether what may be a URL with a password is, so far, one
// without.
func plainURL(of prefix, rest []byte) bool {
	_, port, _ := strings.Cut(string(rest), ":")
	return strings.HasPrefix(of.text, "://") && digits([]byte(port))
}

// note joins a secret with those it overlaps.
func (p *Pieces) note(s span) {
	c := crossing{span: s}
	from := len(p.found)
	for from > 0 && p.found[from-1].end > s.start {
		from--
	}
	to := from
	for ; to < len(p.found) && p.found[to].start < c.end; to++ {
		other := p.found[to]
		c.start, c.end = min(c.start, other.start), max(c.end, other.end)
		c.crosses, c.shown = c.crosses || other.crosses, c.shown || other.shown
	}
	p.found = slices.Replace(p.found, from, to, c)
}

// show writes text up to a place, a line for each event and for the part of one.
func (p *Pieces) show(until int) {
	for p.done < len(p.ends) {
		end := p.ends[p.done]
		if end > until {
			p.print(p.shown, until)
			p.shown = max(p.shown, until)
			return
		}
		blank := end == 0 || p.done > 0 && p.ends[p.done-1] == end
		if blank {
			_, _ = io.WriteString(p.out, p.name+": \n")
		}
		p.print(p.shown, end)
		p.shown = max(p.shown, end)
		p.done++
	}
}

// print writes a line, if it is not empty. Whoever owns the writer handles its
// errors.
func (p *Pieces) print(from, to int) {
	if from >= to {
		return
	}
	p.line = append(append(p.line[:0], p.name...), ": "...)
	head := len(p.line)
	for i := range p.found {
		c := &p.found[i]
		if c.end <= from || c.start >= to || !p.crosses(*c) {
			continue
		}
		p.line = append(p.line, p.text[from:max(from, c.start)]...)
		if !c.shown {
			p.line = append(p.line, Mask...)
			c.shown = true
		}
		from = min(c.end, to)
	}
	p.line = append(p.line, p.text[from:to]...)
	if len(p.line) > head {
		_, _ = p.out.Write(append(p.line, '\n'))
	}
}

func (p *Pieces) crosses(c crossing) bool {
	return c.crosses || slices.ContainsFunc(p.ends, func(end int) bool { return c.start < end && end < c.end })
}

// discard drops what is decided and shown.
func (p *Pieces) discard(undecided int) {
	n := min(undecided, p.shown)
	if n == 0 {
		return
	}
	found := p.found[:0]
	for _, c := range p.found {
		if c.end > n {
			c.crosses = p.crosses(c)
			c.start, c.end = max(0, c.start-n), c.end-n
			found = append(found, c)
		}
	}
	p.found = found
	gone := 0
	for gone < p.done && p.ends[gone] <= n {
		gone++
	}
	p.ends, p.done = p.ends[:copy(p.ends, p.ends[gone:])], p.done-gone
	for i := range p.ends {
		p.ends[i] -= n
	}
	p.text = p.text[:copy(p.text, p.text[n:])]
	p.shown -= n
}
