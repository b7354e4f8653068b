package printable

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// The console's parser is held to the same cases: see TestLogScripts.
func TestCases(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name, Line string
		Pieces     []Piece
	}
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		got, _ := Line(c.Line, Style{})
		if len(got)+len(c.Pieces) > 0 && !reflect.DeepEqual(got, c.Pieces) {
			t.Errorf("%s: Line(%q) = %+v, want %+v", c.Name, c.Line, got, c.Pieces)
		}
		text := ""
		for _, p := range c.Pieces {
			text += p.Text
		}
		if got := Text(c.Line); got != text {
			t.Errorf("%s: Text(%q) = %q, want %q", c.Name, c.Line, got, text)
		}
		fit(t, c.Line)
	}
}

func TestColours(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"\x1b[1;31mred\x1b[0m on\n":                     "\x1b[0;1;31mred\x1b[0m on\n",
		"\x1b[31mnever\nback":                           "\x1b[0;31mnever\x1b[0m\nback",
		"\x1b[8mhidden\x1b[0m":                          "hidden",
		"\x1b[30;40mblack on black":                     "\x1b[0;30mblack on black\x1b[0m",
		"\x1b[97;100;3;4ma\x1b[38;5;200;48;2;1;2;3;9mb": "\x1b[0;3;4;97;100ma\x1b[0;3;4;9;38;5;200;48;2;1;2;3mb\x1b[0m",
		"a\x1b[2Jb":      "ab",
		"not \xff UTF-8": "not \ufffd UTF-8",
	} {
		if got := Colours(in); got != want {
			t.Errorf("Colours(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	value := map[string]string{"a\u202e": "b\x1b[31m\u009b\x7f\U000e0041é\n"}
	raw, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	got := JSON(raw)
	if i := strings.IndexFunc(string(got), func(r rune) bool { return r != '\n' && unicode.Is(unseen, r) }); i >= 0 {
		t.Errorf("JSON() = %q has %q", got, got[i:])
	}
	var back map[string]string
	if err := json.Unmarshal(got, &back); err != nil || !reflect.DeepEqual(back, value) {
		t.Errorf("JSON() = %s is %q, %v, want %q", got, back, err, value)
	}
}

// looksOnly is what a terminal may get: no conceal (8), no blinking (5, 6).
var looksOnly = regexp.MustCompile("\x1b\\[0(?:;(?:[1-4]|7|9|3[0-7]|4[0-7]|9[0-7]|10[0-7]|[34]8;5;[0-9]+|[34]8;2;[0-9]+;[0-9]+;[0-9]+))*m")

// fit holds what is printed of a text against what may be printed.
func fit(t *testing.T, text string) {
	t.Helper()
	never := func(r rune) bool {
		return r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || unicode.Is(unicode.Bidi_Control, r) || r == 0x200b || r == 0xfeff || r == 0x2060
	}
	plain, coloured := Text(text), Colours(text)
	for name, got := range map[string]string{"Text": plain, "Colours": looksOnly.ReplaceAllString(coloured, "")} {
		if i := strings.IndexFunc(got, never); i >= 0 {
			t.Errorf("%s(%q) = %q has %q", name, text, got, got[i:])
		}
	}
	if got := looksOnly.ReplaceAllString(coloured, ""); got != plain {
		t.Errorf("Colours(%q) without colours = %q, want %q", text, got, plain)
	}
	if again := Text(plain); again != plain {
		t.Errorf("Text(%q) = %q, and of that %q", text, plain, again)
	}
}

func FuzzText(f *testing.F) {
	for _, text := range []string{"\x1b[31mred\n\x1b]8;;x\x07", "\x1b[38:2mx", "a\rb\r", "\x1b", "\xff\u202e\U0001f468\u200d", "\x1b[;;;m\x1b[38;5", "10%\r \r"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) { fit(t, text) })
}
