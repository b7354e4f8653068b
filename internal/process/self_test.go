package process

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// fromFile is how many bytes of files are in this process's memory (statm in
// proc_pid_statm(5): shared pages).
func fromFile(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[2])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// What is released is read again from the program's file when it is needed.
func TestReleaseProgram(t *testing.T) {
	program, err := os.ReadFile("/proc/self/exe") // its pages are there to be mapped
	if err != nil {
		t.Fatal(err)
	}
	before := fromFile(t)
	ReleaseProgram()
	after := fromFile(t)
	if after > before*9/10 {
		t.Errorf("of the program's %d bytes %d were in memory, and %d after they were released, want a tenth less at least", len(program), before, after)
	}
}
