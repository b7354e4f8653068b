package scripts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// make test begins with what needs few tools, waits for the others where tests need
// them, shows what failed, and ends as the tests and the set-up do.
func TestMakeTest(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("test.sh")
	if err != nil {
		t.Fatal(err)
	}
	gotestsum := filepath.Dir(pgtest.Tool(t, "gotestsum"))
	for _, c := range []struct {
		name, late, setUp string
		red               bool
		says              []string
	}{
		{"green", "", "", false, []string{"early", "cmd/late", "The slowest tests:", "DONE 2 tests"}},
		{"a test fails", `t.Error("wrong")`, "", true, []string{"wrong", "The slowest tests:", "FAIL: cmd/late TestLate", "DONE 2 tests, 1 failure"}},
		{"a tool is missing", "", "exit 1", true, []string{"DONE 2 tests"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := repository{t, t.TempDir()}
			for name, text := range map[string]string{
				"go.mod": "module example/m\n\ngo 1.26\n",
				"internal/testkit/patience/measure/main.go": `package main
					import "fmt"
					func main() { fmt.Println("1m") }`,
				"internal/testkit/pgtest/serve/main.go": `package main
					import ("io"; "os")
					func main() { os.WriteFile(os.Args[1], nil, 0o600); io.Copy(io.Discard, os.Stdin) }`,
				"early/early_test.go": `package early
					import ("os"; "testing")
					func TestEarly(t *testing.T) { if os.WriteFile("../begun", nil, 0o600) != nil { t.Fatal("no file") } }`,
				"cmd/late/late_test.go": `package late
					import ("os"; "testing")
					func TestLate(t *testing.T) { if _, err := os.Stat("../../tool"); err != nil { t.Fatal(err) }; ` + c.late + ` }`,
				// The rest of the set-up ends when the first test has begun.
				"scripts/test-deps.sh": "#!/bin/sh\n[ $2 = rest ] || exit 0\nfor tries in $(seq 600); do [ ! -e begun ] || break; sleep 0.1; done\ntouch tool\n" + c.setUp + "\n",
				"scripts/test.sh":      string(script),
			} {
				if err := os.MkdirAll(filepath.Join(r.dir, filepath.Dir(name)), 0o755); err != nil {
					t.Fatal(err)
				}
				r.write(name, text)
				if err := os.Chmod(filepath.Join(r.dir, name), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for _, dir := range []string{"charts", "docs", "sql", "templates", "e2e", "scripts"} {
				if err := os.MkdirAll(filepath.Join(r.dir, dir), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			tools := filepath.Join(r.dir, ".tools")
			stdout, stderr, code := r.run([]string{"PATH=" + gotestsum + ":" + os.Getenv("PATH"), "RACE=", "FAULTS=", "TESTARGS="}, "scripts/test.sh", tools)
			if (code != 0) != c.red {
				t.Errorf("make test = %d, want red: %t", code, c.red)
			}
			at := 0
			for _, want := range c.says {
				i := strings.Index(stdout[at:], want)
				if i < 0 {
					t.Fatalf("make test does not say %q, after the others of %q:\n%s%s", want, c.says, stdout, stderr)
				}
				at += i
			}
		})
	}
}
