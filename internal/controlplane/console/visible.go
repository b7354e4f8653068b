package console

import (
	"fmt"
	"html/template"
	"strings"
	"unicode"
)

// visible is text of somebody else's, such as an output or an error: what cannot
// be seen in it, or would turn or overwrite what stands beside it, is shown by its
// number. assets/log/marks.js does the same for logs.
func visible(v any) template.HTML {
	var b strings.Builder
	for _, r := range text(v) {
		if r == '\n' || r == '\t' || !hiddenRune(r) {
			template.HTMLEscape(&b, []byte(string(r)))
			continue
		}
		fmt.Fprintf(&b, `<span class="unseen" title="a character that cannot be seen">U+%04X</span>`, r)
	}
	return template.HTML(b.String()) //nolint:gosec // escaped above
}

// hiddenRune reports whether a character has no look of its own: control and
// format characters, and fillers that are letters by their class only.
func hiddenRune(r rune) bool {
	switch r {
	case 0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0, 0x2028, 0x2029, unicode.ReplacementChar:
		return r != unicode.ReplacementChar
	case 0x200D: // joins emoji and letters of some scripts
		return false
	}
	return unicode.In(r, unicode.Cc, unicode.Cf) || r >= 0xE0000 && r <= 0xE0FFF
}
