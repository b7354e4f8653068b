package logstream

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
)

// MinSecret is the fewest bytes of a secret that are hidden, and of a line of
// one that is hidden on its own: "}" and the like would blot out half a log, and
// what is as short can be guessed.
const MinSecret = 4

// minEncoded is the fewest characters of a secret in base64 or hexadecimal that
// are hidden. Eight in a row are no word and no number that a log has by chance;
// of three or four, every name has some. A secret of seven bytes or more has as
// many in base64, wherever in an encoded text it stands.
const minEncoded = 8

// maxForms is the longest value, in bytes, that is looked for in every form. A
// longer one, and what comes when a set has grown to maxSet bytes, is looked for
// as it is and inside JSON.
const (
	maxForms = 64 << 10
	maxSet   = 16 << 20
)

// forms returns the ways a secret is written in a log: as it is, inside JSON,
// in a URL, and as part of something in base64 or hexadecimal, which may be JSON
// itself; and each of its lines, because what prints it may indent every line or
// put a name before it, and encode it then. White space around it is no part of
// the secret: a file's last newline is seldom printed with it.
func forms(value string, all bool) []string {
	value = strings.TrimSpace(value)
	if len(value) < MinSecret {
		return nil
	}
	all = all && len(value) <= maxForms
	out := writings(value, all)
	if all {
		out = append(out, wrapped(value)...)
	}
	lines := strings.FieldsFunc(value, func(r rune) bool { return r == '\n' || r == '\r' })
	if len(lines) > 1 {
		for _, line := range lines {
			if line = strings.TrimSpace(line); len(line) >= MinSecret {
				out = append(out, writings(line, all)...)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// writings are the forms of a text without what it is in.
func writings(text string, all bool) []string {
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
