package logstream

import (
	"fmt"
	"strings"
	"unicode/utf16"
)

// jsonForms returns how a text stands inside a JSON string: with and without the
// escaping of <, > and & (Terraform's jsonencode escapes them) and of what is not
// ASCII, with digits of either case; inside a JSON string in another; and inside
// a string of the engine's own language.
func jsonForms(text string, all bool) []string {
	out := []string{jsonForm(text, false, false, hex), jsonForm(text, true, false, hex)}
	if !all {
		return out
	}
	for _, digits := range []string{hex, hexUpper} {
		for _, html := range []bool{false, true} {
			once := jsonForm(text, html, false, digits)
			out = append(out, once, jsonForm(text, html, true, digits), jsonForm(once, html, false, digits))
		}
	}
	hcl := strings.NewReplacer("${", "$${", "%{", "%%{").Replace(out[0])
	return append(out, hcl)
}

const hexUpper = "0123456789ABCDEF"

func jsonForm(text string, html, ascii bool, digits string) string {
	var b strings.Builder
	unit := func(u rune) {
		b.WriteString(`\u`)
		for shift := 12; shift >= 0; shift -= 4 {
			b.WriteByte(digits[u>>shift&15])
		}
	}
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\b':
			b.WriteString(`\b`)
		case r == '\f':
			b.WriteString(`\f`)
		case r < ' ', html && (r == '<' || r == '>' || r == '&'), r == '\u2028', r == '\u2029', ascii && r >= 0x7f && r <= 0xffff:
			unit(r)
		case ascii && r > 0xffff:
			high, low := utf16.EncodeRune(r)
			unit(high)
			unit(low)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// urlStyle is what one way of escaping for URLs leaves alone beside letters and
// digits, and what it makes of a space.
type urlStyle struct{ plain, space string }

// urlForms returns how a text stands in a URL. Every language leaves other
// characters alone.
func urlForms(text string) []string {
	styles := []urlStyle{
		{"-._~", "%20"},                 // RFC 3986, and curl
		{"-._~", "+"},                   // forms, and Terraform's urlencode
		{"-._*", "+"},                   // Java
		{"-._~$&+=:@", "%20"},           // Go: a segment of a path
		{"-._~$&+,;=", "%20"},           // Go: user and password
		{"-._~!'()*", "%20"},            // JavaScript: a component
		{"-._~!'()*;/?:@&=+$,#", "%20"}, // JavaScript: a URL
		{"-._~/", "%20"},                // Python
	}
	var out []string
	for _, style := range styles {
		out = append(out, style.escape(text, "%%%02X"), style.escape(text, "%%%02x"))
	}
	return out
}

func (s urlStyle) escape(text, format string) string {
	var b strings.Builder
	for i := range len(text) {
		switch c := text[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte(s.plain, c) >= 0:
			b.WriteByte(c)
		case c == ' ':
			b.WriteString(s.space)
		default:
			fmt.Fprintf(&b, format, c)
		}
	}
	return b.String()
}
