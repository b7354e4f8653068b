package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A bill is that of a program which was built from the files here, and says
// otherwise that it is not.
func TestBill(t *testing.T) {
	program(t, map[string]string{"LICENSE": text(t, "MIT/a.txt")})
	build := exec.CommandContext(t.Context(), "go", "build", "-o", "built", ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	if err := writeBills(sharedJudge(t), "1.2.3", []string{"built"}); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile("built" + billSuffix)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"purl": "pkg:golang/example.com/part@v1.2.3"`, `"id": "MIT"`, `"name": "program"`, `"purl": "pkg:golang/stdlib@1`} {
		if !strings.Contains(string(first), want) {
			t.Errorf("the bill does not have %s:\n%s", want, first)
		}
	}

	if err := os.WriteFile("main.go", []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeBills(sharedJudge(t), "1.2.3", []string{"built"}); err == nil || !strings.Contains(err.Error(), "part@v1.2.3 is only in one of them") {
		t.Errorf("writeBills() of another program = %v, want an error that names the part", err)
	}
	if err := writeBills(sharedJudge(t), "1.2.3", []string{"main.go"}); err == nil || !strings.Contains(err.Error(), "main.go") {
		t.Errorf("writeBills() of no program = %v, want an error that names it", err)
	}
}

// Names and versions that mean something else in a URL.
func TestPackageURL(t *testing.T) {
	t.Parallel()
	for _, c := range [][]string{
		{"golang", "github.com/a/b/v2", "v2.0.0", "pkg:golang/github.com/a/b/v2@v2.0.0"},
		{"golang", "example.com/a", "v2.0.0+incompatible", "pkg:golang/example.com/a@v2.0.0%2Bincompatible"},
		{"npm", "@scope/a", "1.0.0", "pkg:npm/%40scope/a@1.0.0"},
	} {
		if got := packageURL(c[0], c[1], c[2]); got != c[3] {
			t.Errorf("packageURL(%q, %q, %q) = %q, want %q", c[0], c[1], c[2], got, c[3])
		}
	}
}
