package redact

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// maskAll runs text through a stream in writes that end at the given places.
func maskAll(values []string, text string, ends ...int) string {
	var s Secrets
	s.Add(values...)
	stream := s.Stream()
	var out bytes.Buffer
	from := 0
	for _, end := range append(ends, len(text)) {
		out.Write(stream.Mask([]byte(text[from:end])))
		from = end
	}
	out.Write(stream.Flush())
	return out.String()
}

// maskPlainly is what masking means, without thought of speed: every byte of
// every secret found is hidden, overlapping ones as one.
func maskPlainly(values []string, text string) string {
	text = cleanString(text)
	flat := strings.ReplaceAll(text, "\n", " ")
	var found []span
	for _, value := range values {
		for _, form := range forms(value, true) {
			for i := range len(text) {
				if strings.HasPrefix(flat[i:], strings.ReplaceAll(form, "\n", " ")) {
					found = append(found, span{i, i + len(form)})
				}
			}
		}
	}
	slices.SortFunc(found, func(a, b span) int {
		if a.start != b.start {
			return a.start - b.start
		}
		return b.end - a.end
	})
	var out strings.Builder
	shown := 0
	for i, s := range found {
		if i == 0 || s.start >= shown {
			out.WriteString(text[shown:s.start] + Mask)
		}
		shown = max(shown, s.end)
	}
	return out.String() + text[shown:]
}

func TestMask(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		secrets    []string
		text, want string
	}{
		"none":               {nil, "a b", "a b"},
		"one":                {[]string{"hunter2"}, "pw=hunter2;", "pw=***;"},
		"at both ends":       {[]string{"hunter2"}, "hunter2 hunter2", "*** ***"},
		"twice in a row":     {[]string{"hunter2"}, "hunter2hunter2", "******"},
		"not quite":          {[]string{"hunter2"}, "hunter1 hunter", "hunter1 hunter"},
		"again after a slip": {[]string{"abac"}, "ababac", "ab***"},
		"prefix of another":  {[]string{"abcd", "abcdefg"}, "abcd abcdef abcdefg", "*** ***ef ***"},
		"inside another":     {[]string{"bcde", "abcdef"}, "abcdef abcdeg", "*** a***g"},
		"overlapping":        {[]string{"abcd", "cdefgh"}, "abcdefgh", "***"},
		"too short":          {[]string{"abc"}, "abc", "abc"},
		"overlapping itself": {[]string{"abcab"}, "abcabcab", "***"},
		"in JSON":            {[]string{"a\"b\n<c>"}, `x"a\"b\n<c>"a\"b\n\u003cc\u003e`, `x"***"***`},
		"raw lines":          {[]string{"-----BEGIN\nxyz\n"}, "-----BEGIN\nxyz\n", "***\n"},
		"line by line": {[]string{"-----BEGIN KEY-----\r\n  bGluZSBvbmU=\nxyz\n-----END KEY-----\n"},
			"local_file.key (local-exec): -----BEGIN KEY-----\nlocal_file.key (local-exec): bGluZSBvbmU=\nlocal_file.key (local-exec): xyz\n> -----END KEY-----\n",
			"local_file.key (local-exec): ***\nlocal_file.key (local-exec): ***\nlocal_file.key (local-exec): xyz\n> ***\n"},
		"line by line in JSON": {[]string{"{\n  \"key\": \"<a&b>\"\n}"}, `"{" "\"key\": \"<a&b>\"" "\"key\": \"\u003ca\u0026b\u003e\"" "}"`, `"{" "***" "***" "}"`},
		"wrapped":              {[]string{"correct horse battery"}, "it is correct\nhorse battery, correct\n", "it is ***, correct\n"},
		"white space only":     {[]string{"", " ", "\n"}, "a \n", "a \n"},
		"not ASCII":            {[]string{"gehëim"}, "ë gehëim ë", "ë *** ë"},
		"not UTF-8":            {[]string{"a\xffbc"}, "a\xffbc", "***"},
		"NUL":                  {[]string{"hunter2"}, "hunter2\x00", "***\ufffd"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := maskAll(tt.secrets, tt.text); got != tt.want {
				t.Errorf("mask(%q) = %q, want %q", tt.text, got, tt.want)
			}
			for i := range len(tt.text) {
				if got := maskAll(tt.secrets, tt.text, i); got != tt.want {
					t.Errorf("mask(%q, %q) = %q, want %q", tt.text[:i], tt.text[i:], got, tt.want)
				}
			}
		})
	}
}

func TestMaskHoldsOnlyWhatMayBecomeASecret(t *testing.T) {
	t.Parallel()
	var s Secrets
	s.Add("hunter2", "terraform-token")
	m := masker{find: s.patterns()}
	for _, step := range []struct{ in, out string }{
		{"password: hun", "password: "},
		{"ger\n", "hunger\n"},
		{"hunter", ""},
		{"2", Mask},
		{"terr", ""},
		{"ific", "terrific"},
		{"hunter2hunter", Mask},
	} {
		if got := string(m.mask([]byte(step.in))); got != step.out {
			t.Errorf("mask(%q) = %q, want %q", step.in, got, step.out)
		}
	}
	if got := string(m.flush()); got != "hunter" {
		t.Errorf("flush() = %q, want %q", got, "hunter")
	}
}

func TestMaskShowsASecretAsHiddenBeforeALongerOneIsKnown(t *testing.T) {
	t.Parallel()
	var s Secrets
	s.Add("abcd", "abcdefg")
	m := masker{find: s.patterns()}
	if got, want := string(m.mask([]byte("x abcd"))), "x "+Mask; got != want {
		t.Errorf("mask() = %q, want %q", got, want)
	}
	if got, want := string(m.mask([]byte("efg!"))), "!"; got != want {
		t.Errorf("mask() = %q, want %q", got, want)
	}
}

func TestMaskTakesSecretsWhileTextIsHeld(t *testing.T) {
	t.Parallel()
	var s Secrets
	s.Add("abcdx")
	m := masker{find: s.patterns()}
	var out strings.Builder
	out.Write(m.mask([]byte("-abcd"))) // abcd is held
	s.Add("bcde")
	m.find = s.patterns()
	out.Write(m.mask([]byte("e-abcdx-bcde")))
	out.Write(m.flush())
	if got, want := out.String(), "-a***-***-***"; got != want {
		t.Errorf("mask() = %q, want %q", got, want)
	}
}

func TestMaskKeepsHiddenWhatIsHeld(t *testing.T) {
	t.Parallel()
	var s Secrets
	s.Add("abcd", "bcdef")
	m := masker{find: s.patterns()}
	var out strings.Builder
	out.Write(m.mask([]byte("abcd"))) // hidden, and bcd is held
	s.Add("unrelated")
	m.find = s.patterns()
	out.Write(m.mask([]byte("e")))
	out.Write(m.mask([]byte("!")))
	if got, want := out.String(), "***e!"; got != want {
		t.Errorf("mask() = %q, want %q", got, want)
	}
}

func TestMaskHidesALongSecretWhole(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i := range 6_000 {
		b.WriteRune(rune('à' + i*7919%500))
	}
	secret := b.String()
	for _, piece := range split(secret) {
		if len(piece) > maxPattern || len(piece) < maxPattern/2-utf8.UTFMax || !utf8.ValidString(piece) {
			t.Fatalf("split() has one of %d bytes, valid %t", len(piece), utf8.ValidString(piece))
		}
	}
	text := "<" + secret + ">"
	var ends []int
	for i := 0; i < len(text); i += 1000 {
		ends = append(ends, i)
	}
	if got, want := maskAll([]string{secret}, text, ends...), "<***>"; got != want {
		t.Errorf("mask() has %d bytes, %.60q, want %q", len(got), got, want)
	}
}

// FuzzMask: however the text is split, the result is that of masking the
// whole, and no secret is in it.
func FuzzMask(f *testing.F) {
	f.Add("abc", "abcdef", "cde", "xabcdefabcx", []byte{3, 1})
	f.Add("aba", "b", "aa", "ababaaab", []byte{2, 2, 2})
	f.Add("é", "\xc3", "a\"b", "é\xc3\xa9 a\\\"b \x00", []byte{1, 1, 1, 1})
	f.Add("<s>", "\n", " x ", "\\u003cs\\u003e<s> x\n", []byte{5})
	f.Add("-----BEGIN\nkey one\nkey two\n", "two", "", "x: -----BEGIN\nx: key one\r\nx: key two \\nkey one\\n", []byte{4, 4, 4, 9})
	f.Add("aaaa", "aaab", "baaa", "aaaaaaabaaaab", []byte{1, 2, 1, 2, 1, 2})
	f.Add("***", "*", "a***", "a****a*", []byte{1})
	f.Add("\xf0\x9f", "\x98\x80", "😀", "😀\xf0\x9f😀\x98\x80", []byte{1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, s1, s2, s3, text string, cuts []byte) {
		if len(s1)+len(s2)+len(s3) > maxPattern/6 || len(text) > 10_000 {
			return // too slow to be worth a fuzzer's time
		}
		values := []string{s1, s2, s3}
		var ends []int
		at := 0
		for _, c := range cuts {
			if at += int(c); at > len(text) {
				break
			}
			ends = append(ends, at)
		}
		got, want := maskAll(values, text, ends...), maskPlainly(values, text)
		if got != want {
			t.Fatalf("mask(%q) of %q split at %v = %q, want %q", text, values, ends, got, want)
		}
		for _, v := range values {
			for _, form := range forms(v, true) {
				// A secret with a star may come about anew beside a mask.
				if !strings.Contains(form, "*") && strings.Contains(got, form) {
					t.Fatalf("mask(%q) = %q, has secret %q", text, got, form)
				}
			}
		}
	})
}

func BenchmarkMask(b *testing.B) {
	values := []string{
		"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "correct horse battery staple",
		"ghp_16C7e42F292c6912E7710c838347Ae178B4a", "tnd_0c8d3a1b5e7f9a2c4d6e8f0b1a3c5e7d", "s3cr3t-p4ssw0rd",
		"postgres://app:pw@db/app", "xoxb-17653672481-19874698323", "e5f6a7b8c9d0", "Tr0ub4dor&3",
	}
	var s Secrets
	s.Add(values...)
	text := []byte(strings.Repeat("module.vpc.aws_subnet.private[3]: Creation complete after 2s [id=subnet-0a1b2c3d4e5f]\n", 400))
	m := masker{find: s.patterns()}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		m.mask(text)
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	text := "panic: cannot use hunter2 with " + tokenTexts()["GitHub"]
	if got, want := Text(text, "hunter2"), "panic: cannot use *** with ***"; got != want {
		t.Errorf("Text(%q) = %q, want %q", text, got, want)
	}
}
