package printable

import (
	"strconv"
	"strings"
)

// Style is how text looks. The zero Style is plain.
type Style struct {
	// Fg and Bg are 0 for none, 1 + n for the n-th of 256 colours, or rgb +
	// trueColour.
	Fg        int  `json:"fg,omitempty"`
	Bg        int  `json:"bg,omitempty"`
	Bold      bool `json:"bold,omitempty"`
	Dim       bool `json:"dim,omitempty"`
	Italic    bool `json:"italic,omitempty"`
	Underline bool `json:"underline,omitempty"`
	Strike    bool `json:"strike,omitempty"`
	Inverse   bool `json:"inverse,omitempty"`
}

const trueColour = 0x1000000

// maxParameters is how many parameters of one sequence count.
const maxParameters = 64

// applied is the style after an SGR sequence of those parameters, such as
// "1;38;5;200" or "38:2::255:0:0".
func (s Style) applied(parameters string) Style {
	list := strings.Split(parameters, ";")
	list = list[:min(len(list), maxParameters)]
	for i := 0; i < len(list); i++ {
		parts := strings.Split(list[i], ":")
		n := number(parts[0])
		if n != 38 && n != 48 {
			more := -1
			if len(parts) > 1 {
				more = number(parts[1])
			}
			s.simple(n, more)
			continue
		}
		to := &s.Fg
		if n == 48 {
			to = &s.Bg
		}
		switch {
		case len(parts) > 1:
			if colour, ok := byColons(parts); ok {
				*to = colour
			}
		case i+2 < len(list) && list[i+1] == "5":
			*to = 1 + number(list[i+2])&255
			i += 2
		case i+4 < len(list) && list[i+1] == "2":
			*to = rgb(list[i+2 : i+5])
			i += 4
		default:
			return s // cut short: what follows is no sequence of its own
		}
	}
	return s
}

// byColons is the colour in 38:5:N or 38:2::R:G:B.
func byColons(parts []string) (int, bool) {
	switch number(parts[1]) {
	case 5:
		n := 0
		if len(parts) > 2 {
			n = number(parts[2])
		}
		return 1 + n&255, true
	case 2:
		if len(parts) >= 3 {
			return rgb(parts[len(parts)-3:]), true
		}
	}
	return 0, false
}

func rgb(parts []string) int {
	return trueColour + number(parts[0])&255<<16 + number(parts[1])&255<<8 + number(parts[2])&255
}

// number is a parameter's; 0 for none, and for one that is no number.
func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return n
}

// simple applies a parameter that stands by itself; more is what a colon adds.
func (s *Style) simple(n, more int) {
	switch {
	case n == 0:
		*s = Style{}
	case n == 1:
		s.Bold = true
	case n == 2:
		s.Dim = true
	case n == 3:
		s.Italic = true
	case n == 4 || n == 21:
		s.Underline = more != 0
	case n == 7:
		s.Inverse = true
	case n == 9:
		s.Strike = true
	case n == 22:
		s.Bold, s.Dim = false, false
	case n == 23:
		s.Italic = false
	case n == 24:
		s.Underline = false
	case n == 27:
		s.Inverse = false
	case n == 29:
		s.Strike = false
	case n >= 30 && n <= 37:
		s.Fg = n - 29
	case n == 39:
		s.Fg = 0
	case n >= 40 && n <= 47:
		s.Bg = n - 39
	case n == 49:
		s.Bg = 0
	case n >= 90 && n <= 97:
		s.Fg = n - 81
	case n >= 100 && n <= 107:
		s.Bg = n - 91
	}
	// Concealed (8) and blinking (5, 6) text is shown as any other.
}

const reset = "\x1b[0m"

// sequence is the SGR sequence that a terminal gets for the style.
func (s Style) sequence() string {
	if s == (Style{}) {
		return reset
	}
	b := strings.Builder{}
	b.WriteString("\x1b[0")
	for _, look := range []struct {
		is   bool
		code string
	}{{s.Bold, ";1"}, {s.Dim, ";2"}, {s.Italic, ";3"}, {s.Underline, ";4"}, {s.Inverse, ";7"}, {s.Strike, ";9"}} {
		if look.is {
			b.WriteString(look.code)
		}
	}
	b.WriteString(colour(s.Fg, 30, 90, "38"))
	if s.Bg != s.Fg {
		b.WriteString(colour(s.Bg, 40, 100, "48"))
	}
	return b.String() + "m"
}

func colour(c, first, bright int, other string) string {
	switch {
	case c == 0:
		return ""
	case c <= 8:
		return ";" + strconv.Itoa(first+c-1)
	case c <= 16:
		return ";" + strconv.Itoa(bright+c-9)
	case c < trueColour:
		return ";" + other + ";5;" + strconv.Itoa(c-1)
	}
	return ";" + other + ";2;" + strconv.Itoa(c>>16&255) + ";" + strconv.Itoa(c>>8&255) + ";" + strconv.Itoa(c&255)
}
