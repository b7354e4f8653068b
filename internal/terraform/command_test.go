package terraform

import (
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestEachLine(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 200<<10)
	for text, want := range map[string][]string{
		"":                           nil,
		"a":                          {"a"},
		"a\n\nb\n":                   {"a\n", "\n", "b\n"},
		long + "\nb\n" + long + "z":  {long + "\n", "b\n", long + "z"},
		strings.Repeat("y\n", 40000): slices.Repeat([]string{"y\n"}, 40000),
	} {
		for name, reader := range map[string]io.Reader{"at once": strings.NewReader(text), "in pieces": iotest.HalfReader(strings.NewReader(text))} {
			var got []string
			eachLine(reader, func(line []byte) { got = append(got, string(line)) })
			if !slices.Equal(got, want) {
				t.Errorf("%s: of %.20q… of %d bytes come %d lines, want %d", name, text, len(text), len(got), len(want))
			}
		}
	}
}

// What an engine breaks within a frame comes as one line, and nothing else does.
func TestParagraphs(t *testing.T) {
	t.Parallel()
	frame, words := "\x1b[31m│\x1b[0m \x1b[0m", strings.Repeat("word ", 14)+"abcd" // 74 characters
	for _, test := range []struct{ name, printed, want string }{
		{"broken", frame + words + "\n" + frame + "correct horse\n\x1b[31m╵\x1b[0m\n", frame + words + " correct horse\n\x1b[31m╵\x1b[0m\n"},
		{"broken twice", frame + words + "\n" + frame + words + "\n" + frame + "end\n", frame + words + " " + words + " end\n"},
		{"had room", frame + "one\n" + frame + "two\n", frame + "one\n" + frame + "two\n"},
		{"indented", frame + "  " + words + "\n" + frame + "two\n", frame + "  " + words + "\n" + frame + "two\n"},
		{"next paragraph", frame + words + "\n" + frame + "\n" + frame + "two\n", frame + words + "\n" + frame + "\n" + frame + "two\n"},
		{"no frame", words + "\nmore of it\n", words + "\nmore of it\n"},
		{"a bar elsewhere", "a │ b\nc\n", "a │ b\nc\n"},
	} {
		var got strings.Builder
		p := paragraph{take: func(line []byte) { got.Write(line) }}
		eachLine(strings.NewReader(test.printed), p.line)
		p.end()
		if got.String() != test.want {
			t.Errorf("%s: of %q comes %q, want %q", test.name, test.printed, got.String(), test.want)
		}
	}
}
