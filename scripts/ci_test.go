package scripts

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whatever ends with an error makes .ci/run end with one; but that no database of
// vulnerabilities can be reached.
func TestContinuousIntegrationIsRed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fails string // the target of make that does
		vuln  int    // the exit status of vuln.sh
		red   bool
	}{
		{"", 0, false},
		{"", 75, false},
		{"", 3, true},
		{"", 1, true},
		{"test", 0, true},
		{"test", 75, true},
		{"lint", 0, true},
		{"licenses", 75, true},
		{"bench-check", 0, true},
		{"tools-dir", 0, true},
	} {
		t.Run(fmt.Sprintf("%s_%d", c.fails, c.vuln), func(t *testing.T) {
			t.Parallel()
			r := ourRepository(t, ".ci")
			program := func(name, script string) {
				path := filepath.Join(r.dir, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			program("scripts/vuln.sh", fmt.Sprintf("echo vuln; exit %d\n", c.vuln))
			program("bin/make", `for target; do case $target in -*) ;; *) echo "made $target"; [ "$target" != "$FAILS" ] || exit 2 ;; esac; done`+"\n")
			stdout, stderr, code := r.run([]string{"FAILS=" + c.fails, "PATH=" + filepath.Join(r.dir, "bin") + ":" + os.Getenv("PATH")}, ".ci/run")
			if (code != 0) != c.red {
				t.Errorf(".ci/run = %d, want red: %v\n%s%s", code, c.red, stdout, stderr)
			}
			if !strings.Contains(stdout, "made lint") || !strings.Contains(stdout, "made test") {
				t.Errorf(".ci/run does not show both the tests and the linters\n%s%s", stdout, stderr)
			}
		})
	}
}
