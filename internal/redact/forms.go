package redact

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"
)

// minEncoded is the fewest characters of a secret in base64 or hexadecimal that
// are hidden. Eight in a row are no word and no number that a log has by chance;
// of three or four, every name has some. A secret of seven bytes or more has as
// many in base64, wherever in an encoded text it stands.
const minEncoded = 8

// maxForms is the longest value, in bytes, that is searched for in every form. A
// longer one is searched for as it is and inside JSON.
const maxForms = 64 << 10

// forms returns the ways a secret is written in a log: as it is, inside JSON,
// in a URL, and as part of something in base64 or hexadecimal, which may be JSON
// itself; and each of its lines, because what prints it may indent every line or
// put a name before it, and encode it then. White space around it is no part of
// the secret: a file's last newline is seldom printed with it.
func forms(value string, all bool) []string {
	value = strings.TrimSpace(value)
	if len(value) < minSecret {
		return nil
	}
	all = all && len(value) <= maxForms
	out := encodedForms(value, all)
	if all {
		out = append(out, wrapped(value)...)
	}
	lines := strings.FieldsFunc(value, func(r rune) bool { return r == '\n' || r == '\r' })
	if len(lines) > 1 {
		for _, line := range lines {
			if line = strings.TrimSpace(line); len(line) >= minSecret {
				out = append(out, encodedForms(line, all)...)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// encodedForms are the forms of a text without what it is in.
func encodedForms(text string, all bool) []string {
	out := append(jsonForms(cleanString(text), all), cleanString(text))
	if !all {
		return out
	}
	out = append(append(out, urlForms(text)...), encodings(text)...)
	for _, inside := range jsonForms(text, false) {
		if inside != text {
			out = append(out, encodings(inside)...)
		}
	}
	return out
}

// encodings are base64, in both alphabets and wherever in three bytes the value
// begins, and hexadecimal.
func encodings(value string) []string {
	var out []string
	add := func(form string) {
		if len(form) >= minEncoded {
			out = append(out, form)
		}
	}
	for before := range 3 {
		padded := make([]byte, before, before+len(value)+2)
		padded = append(padded, value...)
		for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
			// The characters at both ends which stand for bits of other bytes
			// as well are not known, but where the value is the end of what is
			// encoded.
			first, last := (8*before+5)/6, 8*len(padded)/6
			end := encoding.EncodeToString(padded)
			add(end[first:])
			add(strings.TrimRight(end, "=")[first:])
			add(end[first:last])
		}
	}
	add(fmt.Sprintf("%x", value))
	add(fmt.Sprintf("%X", value))
	return out
}

// wrapped is the value by itself in base64, in lines as base64 and openssl print
// them.
func wrapped(value string) (out []string) {
	alone := base64.StdEncoding.EncodeToString([]byte(value))
	for _, width := range []int{64, 76} {
		if len(alone) > width {
			for line := range slices.Chunk([]byte(alone), width) {
				if len(line) >= minEncoded {
					out = append(out, string(line))
				}
			}
		}
	}
	return out
}

// jsonForms returns how a text stands inside a JSON string: with and without the
// escaping of <, > and & (Terraform's jsonencode escapes them) and of what is not
// ASCII, with digits of either case; inside a JSON string in another; and inside
// a string of the engine's own language.
func jsonForms(text string, all bool) []string {
	out := []string{jsonForm(text, false, false, hexLower), jsonForm(text, true, false, hexLower)}
	if !all {
		return out
	}
	for _, digits := range []string{hexLower, hexUpper} {
		for _, html := range []bool{false, true} {
			once := jsonForm(text, html, false, digits)
			out = append(out, once, jsonForm(text, html, true, digits), jsonForm(once, html, false, digits))
		}
	}
	hcl := strings.NewReplacer("${", "$${", "%{", "%%{").Replace(out[0])
	return append(out, hcl)
}

const (
	hexLower = "0123456789abcdef"
	hexUpper = "0123456789ABCDEF"
)

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

// urlStyle is what one way of escaping for URLs leaves alone as well as letters and
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
