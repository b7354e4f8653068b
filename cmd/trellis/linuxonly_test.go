package main

import (
	"bytes"
	"os"
	"runtime"
	"strings"
	"testing"
)

// What is not possible on a system is refused in words, its flags included, and
// is no wrong usage.
func TestVerbThatNeedsLinux(t *testing.T) {
	t.Parallel()
	var out, said bytes.Buffer
	a := newApp("trellis", func(string) string { return "" }, os.Stdin, terminal{Writer: &out}, terminal{Writer: &said})
	root := a.command()
	for _, c := range root.Commands() {
		if c.Name() == "up" {
			root.RemoveCommand(c)
		}
	}
	root.AddCommand(linuxOnly("up", "Run everything"))
	root.SetArgs([]string{"up", "--slots", "4"})
	cmd, err := root.ExecuteC()
	if code := a.exit(cmd, err); code != exitFailed || out.Len() > 0 {
		t.Errorf("exit code = %d, want %d, and nothing on stdout (%q)", code, exitFailed, out.String())
	}
	for _, want := range []string{"trellis up needs Linux, and this is " + runtime.GOOS + "/" + runtime.GOARCH, "virtual machine", "trellis login URL"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("it says %q, want %q", said.String(), want)
		}
	}
	if strings.Contains(said.String(), "Usage:") {
		t.Errorf("it takes that for wrong usage: %q", said.String())
	}
}
