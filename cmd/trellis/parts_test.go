package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
)

func tty(b *bytes.Buffer) terminal {
	return terminal{Writer: b, tty: true, color: true, width: func() int { return 20 }}
}

// What is typed stays as it is typed: 1.10 is a version, 0123 a postal code.
func TestVariablesKeepTheirText(t *testing.T) {
	t.Parallel()
	a := &app{printer: printer{err: terminal{Writer: io.Discard}}}
	for text, want := range map[string]string{
		"Ada": `"Ada"`, "3": `"3"`, "1.10": `"1.10"`, "0123": `"0123"`, "1e5": `"1e5"`, "true": `"true"`, "null": `"null"`,
		`["a",1]`: `"[\"a\",1]"`, `"quoted"`: `"\"quoted\""`, "": `""`, "a=b": `"a=b"`,
	} {
		vars, err := readVariables(a, variableFlags{texts: []string{"v=" + text}})
		if got := string(vars["v"]); err != nil || got != want {
			t.Errorf("--var v=%s is %s (%v), want %s", text, got, err, want)
		}
	}
	for text, want := range map[string]string{"3": "3", "1.10": "1.10", "true": "true", "null": "null", `["a",1]`: `["a",1]`, ` {"a": 1}`: `{"a": 1}`, `"x"`: `"x"`} {
		vars, err := readVariables(a, variableFlags{jsons: []string{"v=" + text}, texts: []string{"v=a text"}})
		if got := string(vars["v"]); err != nil || got != want {
			t.Errorf("--var-json v=%s is %s (%v), want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "a", "[a]", "007", "NaN"} {
		if _, err := readVariables(a, variableFlags{jsons: []string{"v=" + text}}); err == nil || !strings.Contains(err.Error(), "not JSON") {
			t.Errorf("--var-json v=%s: %v, want an error that says it is not JSON", text, err)
		}
	}
}

func TestLaterVariablesBeatEarlierOnes(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "vars.tfvars.json")
	if err := os.WriteFile(file, []byte(`{"a": 1, "b": "01", "c": 12345678901234567890}`), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &app{in: strings.NewReader(`{"b": 2}`)}
	vars, err := readVariables(a, variableFlags{files: []string{file, "-"}, texts: []string{"a=x", "a=y=z"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a": `"y=z"`, "b": "2", "c": "12345678901234567890"} {
		if got := string(vars[name]); got != want {
			t.Errorf("variable %s = %s, want %s", name, got, want)
		}
	}
	for _, bad := range []string{"novalue", "=x"} {
		if _, err := readVariables(a, variableFlags{texts: []string{bad}}); err == nil {
			t.Errorf("--var %s: no error", bad)
		}
	}
	for content, want := range map[string]string{"[]": "one JSON object", "null": "one JSON object", `{"a":1} x`: "one JSON object"} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readVarFile(a, file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--var-file of %s = %v, want %q", content, err, want)
		}
	}
}

func TestScreenKeepsTheStatusOutOfTheLog(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	s := newScreen(tty(&b))
	for _, do := range []func() error{
		func() error { return s.show("working") },
		func() error { return s.write(provision.Stdout, "one\ntw") },
		func() error { return s.write(provision.Stderr, "bad\n") },
		func() error { return s.write(provision.Stdout, "o\n") },
		func() error { return s.write(provision.System, "half") },
		s.close,
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	status := dim + "working" + reset
	want := status + clearLine + "one\n" + status + clearLine + red + "bad" + reset + "\n" + status +
		clearLine + "two\n" + status + clearLine + status + clearLine + dim + "half" + reset + "\n"
	if got := b.String(); got != want {
		t.Errorf("screen = %q, want %q", got, want)
	}
}

// A file or a pipe gets the text of the log and no escape sequence, wherever the
// rows were cut.
func TestScreenWithoutTTYHasNoEscapes(t *testing.T) {
	t.Parallel()
	const text = "one\n\x1b[1mtwo\x1b[0m\x1b]8;;https://evil.example\x07 three\x1b[8m concealed\n10%\r20%\nuser\u202e\x9b31m \x1b[2Jlast"
	const want = "one\ntwo three concealed\n20%\nuserU+202E\ufffd31m last"
	for cut := range len(text) {
		var b bytes.Buffer
		s := newScreen(terminal{Writer: &b, color: true})
		err := errors.Join(s.show("working"), s.write(provision.Stdout, text[:cut]), s.write(provision.Stdout, text[cut:]), s.close())
		if err != nil {
			t.Fatal(err)
		}
		if b.String() != want {
			t.Errorf("cut at %d the output is %q, want %q", cut, b.String(), want)
		}
	}
}

// Lines of two streams stay whole, and a long one is not held for ever.
func TestScreenKeepsLinesWhole(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	s := newScreen(terminal{Writer: &b})
	long := strings.Repeat("x", longestHeld)
	err := errors.Join(s.write(provision.Stdout, "half"), s.write(provision.Stderr, "other\n"), s.write(provision.Stdout, " and half\n"),
		s.write(provision.Stdout, long+"\x1b[3"), s.write(provision.Stdout, "1mred\n"), s.write(provision.Stdout, "a"), s.write(provision.Stderr, "b"), s.close())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := b.String(), "other\nhalf and half\n"+long+"red\na\nb"; got != want {
		t.Errorf("output = %.80q, want %.80q", got, want)
	}
}

func TestStatusLineFitsTheWindow(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	s := newScreen(tty(&b))
	s.color = false
	if err := s.show(strings.Repeat("é", 50)); err != nil {
		t.Fatal(err)
	}
	if got := []rune(b.String()); len(got) != 19 {
		t.Errorf("status line = %q of %d characters, want 19", string(got), len(got))
	}
}

// A template writes what it likes; the terminal obeys colours only. A colour
// goes on in the next line.
func TestScreenDisarms(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]string{
		"\x1b[1;31mred\n\x1b[0mno":        {"\x1b[0;1;31mred" + reset + "\nno\n", "red\nno\n"},
		"\x1b[31mred\nstill":              {"\x1b[0;31mred" + reset + "\n\x1b[0;31mstill" + reset + "\n", "red\nstill\n"},
		"a\x1b[2Jb\x1b[10;10Hc":           {"abc\n", "abc\n"},
		"\x1b[8mconcealed\x1b[5mblinking": {"concealedblinking\n", "concealedblinking\n"},
		"t\x1b]0;title\x07u":              {"tu\n", "tu\n"},
		"bell\x07 c1\u009b31m":            {"bell␇ c1U+009B31m\n", "bell␇ c1U+009B31m\n"},
	} {
		for i, color := range []bool{true, false} {
			var b bytes.Buffer
			s := newScreen(terminal{Writer: &b, tty: true, color: color})
			if err := errors.Join(s.write(provision.Stdout, text), s.close()); err != nil {
				t.Fatal(err)
			}
			if b.String() != want[i] {
				t.Errorf("with colours %t, %q is shown as %q, want %q", color, text, b.String(), want[i])
			}
		}
	}
}

// Whatever is printed, by whichever verb, has nothing of others but text.
func TestPrintedTextIsFit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		tty  bool
		want string
	}{{false, "name a U+202E b␛]0;x\n"}, {true, "name \x1b[0;31ma" + reset + " U+202E b␛]0;x\n"}} {
		var out, said bytes.Buffer
		a := &app{printer: printer{out: terminal{Writer: &out, tty: tt.tty, color: true}, err: terminal{Writer: &said, tty: tt.tty, color: true}}}
		name := "\x1b[31ma\x1b[0m \u202e b\x1b]0;x"
		if err := a.print("name %s", name); err != nil {
			t.Fatal(err)
		}
		a.say("name %s", name)
		if out.String() != tt.want || said.String() != tt.want {
			t.Errorf("on a terminal %t: %q and %q, want %q", tt.tty, out.String(), said.String(), tt.want)
		}
		out.Reset()
		if err := a.printJSON(name); err != nil {
			t.Fatal(err)
		}
		if got, want := out.String(), `"\u001b[31ma\u001b[0m \u202e b\u001b]0;x"`+"\n"; got != want {
			t.Errorf("as JSON: %s, want %s", got, want)
		}
	}
}

func TestStatusLine(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 1, 5, 0, time.UTC)
	began, percent := now.Add(-65*time.Second), 40
	stage := provision.StageApply
	for _, tt := range []struct {
		p    wire.Provision
		want string
	}{
		{wire.Provision{Status: provision.Queued, Waiting: "the cluster is paused", CreatedAt: now.Add(time.Hour)}, "▸ #7 w · queued: the cluster is paused · 0s"},
		{wire.Provision{Status: provision.Processing, Stage: &stage, CreatedAt: began, StartedAt: &began}, "▸ #7 w · apply (8 of 10) · 1m5s"},
		{wire.Provision{Status: provision.Processing, Stage: &stage, Percent: &percent, CreatedAt: began, StartedAt: &began}, "▸ #7 w · apply 40 % · 1m5s"},
		{wire.Provision{Status: provision.Processing, Stage: &stage, Percent: &percent, CreatedAt: began, StartedAt: &began, Running: []provision.Running{
			{Address: "a.b", Since: now.Add(-3 * time.Second)}, {Address: "c.d", Since: now.Add(time.Hour)}}}, "▸ #7 w · apply 40 % · 1m5s · a.b 3s and 1 more"},
		{wire.Provision{Status: provision.Processing, Stage: &stage, CancelRequestedAt: &now, CreatedAt: began, StartedAt: &now}, "▸ #7 w · stopping · 0s"},
	} {
		tt.p.Number, tt.p.Workspace = 7, "w"
		tt.p.AsOf = now
		if got := statusLine(tt.p); got != tt.want {
			t.Errorf("statusLine() = %q, want %q", got, tt.want)
		}
	}
}
