package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

func tty(b *bytes.Buffer) terminal {
	return terminal{Writer: b, tty: true, color: true, width: func() int { return 20 }}
}

func TestParseValue(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Ada": `"Ada"`, "3": "3", "1.10": "1.10", "true": "true", "null": "null", `["a",1]`: `["a",1]`, `{"a": 1}`: `{"a": 1}`,
		`"quoted"`: `"\"quoted\""`, "": `""`, "007": `"007"`, "[a,b]": `"[a,b]"`, "a=b": `"a=b"`, "NaN": `"NaN"`,
	} {
		if got := string(parseValue(text)); got != want {
			t.Errorf("parseValue(%q) = %s, want %s", text, got, want)
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
	vars, err := a.readVariables([]string{file, "-"}, []string{"a=x", "a=y=z"})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a": `"y=z"`, "b": "2", "c": "12345678901234567890"} {
		if got := string(vars[name]); got != want {
			t.Errorf("variable %s = %s, want %s", name, got, want)
		}
	}
	for _, bad := range []string{"novalue", "=x"} {
		if _, err := a.readVariables(nil, []string{bad}); err == nil {
			t.Errorf("--var %s: no error", bad)
		}
	}
	for content, want := range map[string]string{"[]": "one JSON object", "null": "one JSON object", `{"a":1} x`: "one JSON object"} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := a.readVarFile(file); err == nil || !strings.Contains(err.Error(), want) {
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

func TestScreenWithoutTTYPassesBytes(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	s := newScreen(terminal{Writer: &b, color: true})
	text := "one\n\x1b[1mtw"
	if err := s.show("working"); err != nil {
		t.Fatal(err)
	}
	if err := s.write(provision.Stderr, text); err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if b.String() != text {
		t.Errorf("output = %q, want the log's bytes %q", b.String(), text)
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

// A template writes what it likes; the terminal obeys colours only.
func TestForTerminalDisarms(t *testing.T) {
	t.Parallel()
	coloured, plainly := terminal{tty: true, color: true}, terminal{tty: true}
	for line, want := range map[string][2]string{
		"\x1b[1;31mred\x1b[0m":             {"\x1b[1;31mred\x1b[0m" + reset, "red"},
		"a\x1b[2Jb\x1b[10;10Hc":            {"abc", "abc"},
		"t\x1b]0;title\x07u\x1b]52;c;eA==": {"tu", "tu"},
		"10%\r20%\r":                       {"20%", "20%"},
		"bell\x07 back\x08 c1\u009b31m":    {"bell back c131m", "bell back c131m"},
		"tab\tstays é":                     {"tab\tstays é", "tab\tstays é"},
		"lone \x1b":                        {"lone ", "lone "},
	} {
		if got := coloured.forTerminal(line); got != want[0] {
			t.Errorf("forTerminal(%q) = %q, want %q", line, got, want[0])
		}
		if got := plainly.forTerminal(line); got != want[1] {
			t.Errorf("forTerminal(%q) without colours = %q, want %q", line, got, want[1])
		}
	}
}

func TestStatusLine(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 1, 5, 0, time.UTC)
	began, percent := now.Add(-65*time.Second), 40
	stage := provision.StageApply
	for _, tt := range []struct {
		p    store.Provision
		want string
	}{
		{store.Provision{Status: provision.Queued, Waiting: "the cluster is paused", CreatedAt: now.Add(time.Hour)}, "▸ #7 w · queued: the cluster is paused · 0s"},
		{store.Provision{Status: provision.Processing, Stage: &stage, CreatedAt: began, StartedAt: &began}, "▸ #7 w · apply (7 of 9) · 1m5s"},
		{store.Provision{Status: provision.Processing, Stage: &stage, Percent: &percent, CreatedAt: began, StartedAt: &began}, "▸ #7 w · apply 40 % · 1m5s"},
		{store.Provision{Status: provision.Processing, Stage: &stage, Percent: &percent, CreatedAt: began, StartedAt: &began, Running: []provision.Running{
			{Address: "a.b", Since: now.Add(-3 * time.Second)}, {Address: "c.d", Since: now.Add(time.Hour)}}}, "▸ #7 w · apply 40 % · 1m5s · a.b 3s and 1 more"},
		{store.Provision{Status: provision.Processing, Stage: &stage, CancelRequestedAt: &now, CreatedAt: began, StartedAt: &now}, "▸ #7 w · stopping · 0s"},
	} {
		tt.p.Number, tt.p.Workspace = 7, "w"
		tt.p.AsOf = now
		if got := statusLine(tt.p); got != tt.want {
			t.Errorf("statusLine() = %q, want %q", got, tt.want)
		}
	}
}
