package printable

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/tendril-run/tendril/internal/lazyregexp"
)

// Piece is a part of a line that has one look.
type Piece struct {
	Text  string `json:"text"`
	Style Style  `json:"style,omitzero"`
	// Mark says that Text stands for a character that can't be seen.
	Mark bool `json:"mark,omitempty"`
}

// The escape sequences that are left out (ECMA-48). An OSC, DCS, APC, PM or SOS
// counts when it ends; what does not begin any of these is no sequence.
var (
	control = lazyregexp.New("^\x1b\\[([0-?]{0,1000})([ -/]{0,16})([@-~])")
	texts   = regexp.MustCompile("^\x1b[\\]P_^X][^\x07\x1b]*(?:\x07|\x1b\\\\)")
	other   = regexp.MustCompile("^\x1b[ -/]{0,4}[0-OQ-WYZ`-~\\\\]")
	looks   = regexp.MustCompile("^[0-9;:]*$")
)

// Line takes a line apart that begins in a style, and returns the style at its
// end. Of a line that was written over several times (\r) it is what was left.
func Line(line string, style Style) ([]Piece, Style) {
	if plain(line) {
		if line == "" {
			return nil, style
		}
		return []Piece{{Text: line, Style: style}}, style
	}
	line = strings.ToValidUTF8(line, string(utf8.RuneError))
	before, line := left(line)
	_, style = split(before, style)
	return split(line, style)
}

// plain reports whether a line has nothing to look at more closely.
func plain(line string) bool {
	for i := range len(line) {
		if c := line[i]; (c < ' ' || c > '~') && c != '\t' {
			return false
		}
	}
	return true
}

// left returns what is left of a line that was written over, the last part that
// has anything to see, and what stood before that.
func left(line string) (before, shown string) {
	line = strings.TrimSuffix(line, "\r")
	for end := len(line); end >= 0; {
		from := strings.LastIndexByte(line[:end], '\r') + 1
		if from == 0 || !blank(line[from:end]) {
			return line[:from], line[from:end]
		}
		end = from - 1
	}
	return "", line
}

func blank(part string) bool {
	if strings.TrimSpace(part) == "" {
		return true
	}
	if len(part) >= 4096 || !strings.Contains(part, "\x1b") {
		return false
	}
	pieces, _ := split(part, Style{})
	for _, p := range pieces {
		if strings.TrimSpace(p.Text) != "" {
			return false
		}
	}
	return true
}

// split is Line for what was not written over.
func split(line string, style Style) (pieces []Piece, end Style) {
	add := func(text string, mark bool) {
		last := len(pieces) - 1
		switch {
		case text == "":
		case !mark && last >= 0 && !pieces[last].Mark && pieces[last].Style == style:
			pieces[last].Text += text
		default:
			pieces = append(pieces, Piece{text, style, mark})
		}
	}
	var before []rune // the last few
	from := 0
	for i := 0; i < len(line); {
		r, size := utf8.DecodeRuneInString(line[i:])
		after, _ := utf8.DecodeRuneInString(line[i+size:])
		if !unicode.Is(unseen, r) || belongs(before, r, after) {
			if before = append(before, r); len(before) > 8 {
				before = append(before[:0], before[4:]...)
			}
			i += size
			continue
		}
		add(line[from:i], false)
		before = before[:0]
		if n, next := sequence(line[i:], style); r == '\x1b' && n > 0 {
			i += n
			from, style = i, next
			continue
		}
		add(mark(r), true)
		i += size
		from = i
	}
	add(line[from:], false)
	return pieces, style
}

// sequence returns how long the escape sequence is that a text begins with, 0
// for none, and the style after it.
func sequence(text string, style Style) (int, Style) {
	if m := control.FindStringSubmatch(text); m != nil {
		if m[3] == "m" && m[2] == "" && looks.MatchString(m[1]) {
			style = style.applied(m[1])
		}
		return len(m[0]), style
	}
	if m := texts.FindString(text); m != "" {
		return len(m), style
	}
	return len(other.FindString(text)), style
}

// Text makes a text of any number of lines fit for a file, a pipe, or a terminal
// that is to show no colours.
func Text(text string) string { return eachLine(text, false) }

// Colours is Text that keeps colours and looks. No line leaves one behind.
func Colours(text string) string { return eachLine(text, true) }

func eachLine(text string, colours bool) string {
	var b strings.Builder
	for line := range strings.SplitAfterSeq(text, "\n") {
		line, ended := strings.CutSuffix(line, "\n")
		pieces, _ := Line(line, Style{})
		write(&b, pieces, colours)
		if ended {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// Join writes pieces as one line, with their looks if colours are wanted.
func Join(pieces []Piece, colours bool) string {
	var b strings.Builder
	write(&b, pieces, colours)
	return b.String()
}

func write(b *strings.Builder, pieces []Piece, colours bool) {
	now := Style{}
	for _, p := range pieces {
		if colours && p.Style != now {
			b.WriteString(p.Style.sequence())
			now = p.Style
		}
		b.WriteString(p.Text)
	}
	if now != (Style{}) {
		b.WriteString(reset)
	}
}

// JSON escapes what can't be seen in a JSON document, which stays the same for
// those that read it.
func JSON(document []byte) []byte {
	var b strings.Builder
	for i, r := range string(document) {
		switch {
		case r == '\n' || r == utf8.RuneError || !unicode.Is(unseen, r):
			_, size := utf8.DecodeRune(document[i:])
			b.Write(document[i : i+size])
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			b.WriteString(escaped(high) + escaped(low))
		default:
			b.WriteString(escaped(r))
		}
	}
	return []byte(b.String())
}

func escaped(r rune) string {
	const digits = "0123456789abcdef"
	return string([]byte{'\\', 'u', digits[r>>12&15], digits[r>>8&15], digits[r>>4&15], digits[r&15]})
}
