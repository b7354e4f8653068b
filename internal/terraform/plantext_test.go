package terraform

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPlanTextWaitsOutsideOfMemory(t *testing.T) {
	t.Parallel()
	var shown bytes.Buffer
	out := newOutput(&shown, nil)
	dir := t.TempDir()
	p := planText{out: out, dir: dir, most: 1 << 20}
	say := func(line string) { p.line([]byte(line)) }
	say("terraform_data.a: Refreshing state...\n")
	if got := shown.String(); got != "terraform_data.a: Refreshing state...\n" {
		t.Errorf("before the plan begins %q is shown, want the line as it came", got)
	}
	shown.Reset()
	const line = "\x1b[1m  # terraform_data.a\x1b[0m will be created: a-secret\n"
	for range (1 << 20) / len(line) {
		say(line)
	}
	say(strings.Repeat("x", len(line)) + "\n") // does not fit any more
	if shown.Len() > 0 {
		t.Errorf("%d bytes of the plan are shown before its secrets are known, want none", shown.Len())
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("while the text waits its directory holds %v (%v), want no name that opens it", entries, err)
	}
	p.print()
	got := shown.String()
	want := strings.Repeat(line, (1<<20)/len(line))
	rest, ok := strings.CutPrefix(got, want)
	if !ok || !strings.Contains(rest, fmt.Sprintf("longer than the 1 MiB that are shown; %d bytes are left out", len(line)+1)) || strings.Contains(rest, "xxx") {
		t.Errorf("of the plan %d bytes and then %q are shown, want %d and a line that says what is left out", len(got)-len(rest), rest, len(want))
	}
}

func TestPlanTextThatCannotWaitIsNotShown(t *testing.T) {
	t.Parallel()
	var shown bytes.Buffer
	p := planText{out: newOutput(&shown, nil), dir: filepath.Join(t.TempDir(), "none"), most: 1 << 20}
	p.line([]byte("  # terraform_data.a will be created: a-secret\n"))
	p.print()
	if got := shown.String(); strings.Contains(got, "a-secret") || !strings.Contains(got, "no such file") {
		t.Errorf("a plan that could not be kept shows %q, want the reason alone", got)
	}
}
