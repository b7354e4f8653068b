package redact

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestClean(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                 "",
		"plain\n":          "plain\n",
		"a\x00b":           "a\ufffdb",
		"\xff\xfe":         "\ufffd\ufffd",
		"é€😀":              "é€😀",
		"cut \xe2\x82":     "cut \ufffd\ufffd",
		"\xf0\x9f\x98":     "\ufffd\ufffd\ufffd",
		"\xed\xa0\x80":     "\ufffd\ufffd\ufffd", // a surrogate is no rune
		"\x1b[1mbold\x1b[": "\x1b[1mbold\x1b[",
	} {
		for i := range len(in) + 1 {
			var c cleaner
			var got strings.Builder
			got.Write(c.clean([]byte(in[:i])))
			got.Write(c.clean([]byte(in[i:])))
			got.Write(c.flush())
			if got.String() != want {
				t.Errorf("clean(%q, %q) = %q, want %q", in[:i], in[i:], got.String(), want)
			}
		}
		if got := cleanString(in); got != want {
			t.Errorf("cleanString(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestCleanJoinsARuneOfFourWrites(t *testing.T) {
	t.Parallel()
	var c cleaner
	var got strings.Builder
	for _, b := range []byte("a😀b") {
		out := c.clean([]byte{b})
		if !utf8.Valid(out) {
			t.Errorf("clean(%q) = %q, want UTF-8", b, out)
		}
		got.Write(out)
	}
	if got.String() != "a😀b" {
		t.Errorf("clean() = %q, want %q", got.String(), "a😀b")
	}
}
