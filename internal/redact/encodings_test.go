package redact

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
)

// encoding is a row of SECURITY.md's table: how a secret is written, by other
// means than those that hide it.
type encoding struct {
	name  string
	write func(string) string
}

var documented = []encoding{
	{"as it is", func(s string) string { return s }},
	{"in JSON", func(s string) string { return quoted(s, false) }},
	{"in JSON that escapes `<`, `>` and `&` (Terraform's `jsonencode`)", func(s string) string { return quoted(s, true) }},
	{"in JSON that is ASCII", func(s string) string { s = fmt.Sprintf("%+q", s); return s[1 : len(s)-1] }},
	{"in JSON in JSON", func(s string) string { return quoted(quoted(s, false), false) }},
	{"in a string of Terraform's language", func(s string) string { return strings.ReplaceAll(quoted(s, false), "${", "$${") }},
	{"in a URL's query (`urlencode`)", url.QueryEscape},
	{"the same in small letters", func(s string) string {
		return regexp.MustCompile("%..").ReplaceAllStringFunc(url.QueryEscape(s), strings.ToLower)
	}},
	{"in a URL's path", url.PathEscape},
	{"as the password in a URL", func(s string) string { return strings.TrimPrefix(url.UserPassword("", s).String(), ":") }},
	{"by `encodeURIComponent`", func(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }},
	{"base64", func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }},
	{"base64 for URLs", func(s string) string { return base64.URLEncoding.EncodeToString([]byte(s)) }},
	{"base64 behind 1 other byte", func(s string) string { return base64.StdEncoding.EncodeToString([]byte("x" + s))[2:] }},
	{"base64 behind 2 other bytes", func(s string) string { return base64.StdEncoding.EncodeToString([]byte("xy" + s))[3:] }},
	{"base64 of JSON", func(s string) string { return base64.StdEncoding.EncodeToString([]byte(quoted(s, false))) }},
	{"hexadecimal", func(s string) string { return fmt.Sprintf("%x", s) }},
	{"hexadecimal in capitals", func(s string) string { return fmt.Sprintf("%X", s) }},
}

func quoted(s string, html bool) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(html)
	_ = e.Encode(s) // a string always encodes
	text := strings.TrimSpace(b.String())
	return text[1 : len(text)-1]
}

// SECURITY.md says which encodings of a secret are masked. Each is, as a whole
// and in pieces, and the table has what is written.
func TestDocumentedEncodingsAreMasked(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../docs/SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(raw), "\n## Encodings that are masked\n")
	section, _, _ = strings.Cut(section, "\n#")
	secret := regexp.MustCompile("how `([^`]+)` looks").FindStringSubmatch(section)
	if !found || secret == nil {
		t.Fatal("SECURITY.md has no section that says how a secret looks in each encoding")
	}
	var want, got []string
	for _, e := range documented {
		want = append(want, fmt.Sprintf("| %s | `%s` |", e.name, e.write(secret[1])))
	}
	for line := range strings.Lines(section) {
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| encoding |") {
			got = append(got, strings.TrimSuffix(line, "\n"))
		}
	}
	if a, b := strings.Join(got, "\n"), strings.Join(want, "\n"); a != b {
		t.Errorf("SECURITY.md has the table\n%s\nwant\n%s", a, b)
	}
	for _, e := range documented {
		text := "\x01" + e.write(secret[1]) + "\x01"
		if got, want := maskAll([]string{secret[1]}, text), "\x01"+Mask+"\x01"; got != want {
			t.Errorf("%s: mask(%q) = %q, want %q", e.name, text, got, want)
		}
		for cut := 1; cut < len(text); cut++ {
			log := printEvents(t, []string{secret[1]}, 1, []event{{text: text[:cut]}, {text: text[cut:]}})
			if got := printedBy(log, 0); strings.Contains(got, e.write(secret[1])) || !strings.Contains(got, Mask) {
				t.Errorf("%s: the events %q, %q are shown as %q, want the secret hidden", e.name, text[:cut], text[cut:], got)
			}
		}
	}
}
